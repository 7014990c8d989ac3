"""Facts about a model that do not need its weights loaded: its rotary embedding, tokenizer and fingerprint."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.hf_config import LONGROPE_TYPES, ladder_from_config, rope_parameters
from ropeswitch.factors.places import check_places
from ropeswitch.factors.rules.rope import Rope, rope_from_config

# Rope types without scaling, and those with known factor sets.
TYPES = ("default", *LONGROPE_TYPES)
WEIGHTS = (".safetensors", ".bin")
# Files that determine tokenization; these are read in full.
TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Number and size of the evenly spaced pieces that are read from each weights file.
PIECES, PIECE_BYTES = 64, 1 << 16


@dataclass(frozen=True)
class ModelFacts:
    """A model's rotary embedding before any extension, the factor sets of its config (or None), and its tokenizer."""

    name: str
    rope: Rope
    ladder: FactorLadder | None
    tokenizer: Any

    @classmethod
    def load(cls, name: str) -> "ModelFacts":
        """Read config and tokenizer of a model folder or Hugging Face name; FactorError if unsupported."""
        from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

        try:
            written, _ = PretrainedConfig.get_config_dict(name)
            check_places(written)
            config = AutoConfig.from_pretrained(name).to_dict()
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            raise FactorError(f"model {name!r}: cannot be opened: {str(error).splitlines()[0]}") from error
        try:
            return cls(name, _rope(config), ladder_from_config(config), tokenizer)
        except FactorError as error:
            raise FactorError(f"model {name!r}: {error}") from error


def _rope(config: dict[str, Any]) -> Rope:
    rope = rope_parameters(config)
    if rope.get("rope_theta") is None:
        raise FactorError(f"{config.get('model_type')} has no rotary embedding; factors need one")
    if rope["rope_type"] not in TYPES:
        raise FactorError(
            f"is already extended by rope_type {rope['rope_type']!r}, which a search would drop; supported are "
            f"{', '.join(TYPES)}"
        )
    return rope_from_config(config)


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
