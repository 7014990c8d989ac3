"""Facts about a model that a search needs before loading its weights."""

from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.hf_config import LONGROPE_TYPES, ladder_from_config, rope_parameters
from ropeswitch.factors.places import check_places
from ropeswitch.factors.rules.rope import Rope, rope_from_config

# Rope types without scaling, and those with known factor sets.
TYPES = ("default", *LONGROPE_TYPES)


@dataclass(frozen=True)
class ModelFacts:
    """A model's rotary embedding, as described by its config.

    Attributes:
        name: Model folder or Hugging Face name.
        rope: Its rotary embedding before any extension.
        ladder: Factor sets of its config, or None.
        tokenizer: Its tokenizer.
    """

    name: str
    rope: Rope
    ladder: FactorLadder | None
    tokenizer: Any

    @classmethod
    def load(cls, name: str) -> "ModelFacts":
        """Read config and tokenizer.

        Raises:
            FactorError: when they cannot be read, or the rotary embedding is missing or unsupported.
        """
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
