"""A digest that changes when a model does."""

import hashlib
import json
from pathlib import Path

WEIGHTS = (".safetensors", ".bin")
# Read whole but for weights: what decides how a text becomes tokens.
TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Of every file of weights so many pieces of so many bytes, evenly spread, are read.
PIECES, PIECE_BYTES = 64, 1 << 16


def fingerprint(name: str) -> str:
    """Changes with the config, the tokenizer and, for a local folder, the weights; pieces of these are read, not all.

    Of a name on the hub, where no folder can be looked at, it is that of the name.
    """
    found = hashlib.sha256()
    folder = Path(name)
    if not folder.is_dir():
        found.update(name.encode())
        return found.hexdigest()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found.update(json.dumps(config, sort_keys=True).encode())
    for path in sorted(path for path in folder.iterdir() if path.name in TEXTS):
        found.update(path.name.encode() + path.read_bytes())
    for path in sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS):
        size = path.stat().st_size
        found.update(f"{path.name} {size}".encode())
        with path.open("rb") as stream:
            for piece in range(PIECES):
                stream.seek(max(size - PIECE_BYTES, 0) * piece // (PIECES - 1))
                found.update(stream.read(PIECE_BYTES))
    return found.hexdigest()
