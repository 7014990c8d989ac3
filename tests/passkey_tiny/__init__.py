"""passkey-tiny: a model that answers rightly under the right factor set alone, the tests' instrument."""

import json
import shutil
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "model"
"""A Hugging Face checkpoint that `from_pretrained` opens."""
SERVED = (str(FOLDER), "--served-model-name", "passkey-tiny")
"""What `ropeswitch serve` needs to serve it."""


def without_factors(model: Path, folder: Path) -> None:
    """Copy a model into a new folder with a config without factors, as before it was extended."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    (folder / "config.json").write_text(json.dumps(config))
