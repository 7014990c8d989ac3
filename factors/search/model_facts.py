"""What a search needs to know of a model before its weights are loaded."""

from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.fingerprint import fingerprint
from ropeswitch.factors.hf_config import LONGROPE_TYPES, ladder_from_config, rope_parameters
from ropeswitch.factors.rules.rope import head_dim

# Rotary embeddings that nothing rescales yet, and those whose factor sets are known.
TYPES = ("default", *LONGROPE_TYPES)


@dataclass(frozen=True)
class ModelFacts:
    """A model's rotary embedding, as its config has it.

    Attributes:
        name: The folder, or its name on the hub.
        theta: Rotary base.
        pairs: Rotary frequencies, one factor each.
        window: Tokens that the model was trained for before any extension.
        ladder: The factor sets of its config, or None.
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
            FactorError: when they cannot be read, or the model has no rotary embedding.
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
                f"model {name!r}: is extended already, by rope_type {rope['rope_type']!r}; a search would drop that. "
                f"Searched are {', '.join(TYPES)}"
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
