"""Facts about a model that a search needs before loading its weights."""

from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.fingerprint import fingerprint
from ropeswitch.factors.hf_config import LONGROPE_TYPES, ladder_from_config, rope_parameters
from ropeswitch.factors.rules.rope import head_dim

# Rope types without scaling, and those with known factor sets.
TYPES = ("default", *LONGROPE_TYPES)


@dataclass(frozen=True)
class ModelFacts:
    """A model's rotary embedding, as described by its config.

    Attributes:
        name: Model folder or Hugging Face name.
        theta: Rotary base.
        pairs: Rotary frequencies, one factor each.
        window: Window before any extension, in tokens.
        ladder: Factor sets of its config, or None.
        tokenizer: Its tokenizer.
    """

    name: str
    theta: float
    pairs: int
    window: int
    ladder: FactorLadder | None
    tokenizer: Any

    @classmethod
    def load(cls, name: str) -> "ModelFacts":
        """Read config and tokenizer.

        Raises:
            FactorError: when they cannot be read, or the rotary embedding is missing or unsupported.
        """
        from transformers import AutoConfig, AutoTokenizer

        try:
            config = AutoConfig.from_pretrained(name).to_dict()
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            raise FactorError(f"model {name!r}: cannot be opened: {str(error).splitlines()[0]}") from error
        rope = rope_parameters(config)
        if rope.get("rope_theta") is None:
            raise FactorError(f"model {name!r}: {config.get('model_type')} has no rotary embedding; factors need one")
        if rope["rope_type"] not in TYPES:
            raise FactorError(
                f"model {name!r}: is already extended by rope_type {rope['rope_type']!r}, which a search would drop; "
                f"supported are {', '.join(TYPES)}"
            )
        head = head_dim(config)
        window = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
        return cls(
            name=name,
            theta=float(rope["rope_theta"]),
            pairs=int(head * (rope.get("partial_rotary_factor") or 1.0)) // 2,
            window=window,
            ladder=ladder_from_config(config),
            tokenizer=tokenizer,
        )

    def fingerprint(self) -> str:
        """See :func:`ropeswitch.factors.fingerprint.fingerprint`."""
        return fingerprint(self.name)
