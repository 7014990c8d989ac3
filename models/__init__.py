"""The bundled model, and the models of `make demo`."""

from pathlib import Path

BUNDLED_MODEL = Path(__file__).resolve().parent / "longrope-mini"
"""Folder of the bundled model, a Hugging Face checkpoint for `from_pretrained`."""
BUNDLED_FACTORS = BUNDLED_MODEL / "factors.json"
"""Factor file with all its sets; config.json has room for only two."""
