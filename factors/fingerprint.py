"""Computes a digest that changes when a model changes."""

import hashlib
import json
from pathlib import Path

WEIGHTS = (".safetensors", ".bin")
# Files that determine tokenization; these are read in full.
TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Number and size of the evenly spaced pieces that are read from each weights file.
PIECES, PIECE_BYTES = 64, 1 << 16


def fingerprint(name: str) -> str:
    """Return a digest of a model folder's config, tokenizer and weights (sampled, not read in full).

    For a Hugging Face name without a local folder, it is the digest of the name.
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
