"""The bundled demo model, the recipe that makes it, and the pass-key prompts that test it."""

from pathlib import Path

BUNDLED_MODEL = Path(__file__).resolve().parent / "passkey-tiny"
"""Folder of the bundled model: a Hugging Face checkpoint that `from_pretrained` opens."""
