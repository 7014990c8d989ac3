"""passkey-tiny: a model that answers rightly under the right factor set alone, the tests' instrument."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "model"
"""A Hugging Face checkpoint that `from_pretrained` opens."""
SERVED = (str(FOLDER), "--served-model-name", "passkey-tiny")
"""What `ropeswitch serve` needs to serve it."""
