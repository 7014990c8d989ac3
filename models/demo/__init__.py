"""A real chat model to try: SmolLM2-135M-Instruct, out of a Python package; ``make demo`` serves it."""
