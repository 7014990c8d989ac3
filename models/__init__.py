"""The bundled model, and the models of `make demo`."""

from pathlib import Path

BUNDLED_MODEL = Path(__file__).resolve().parent / "longrope-mini"
"""Folder of the bundled model: a Hugging Face checkpoint that `from_pretrained` opens."""
BUNDLED_FACTORS = BUNDLED_MODEL / "factors.json"
"""All its factor sets; its config.json has room for two."""
