"""``MODEL@SET`` as a model name: a request for ``qwen3@128k`` goes to the model ``qwen3``, rotated with the set ``128k``.

``MODEL`` is a served name or a LoRA adapter. A served name wins over an alias of the same spelling; otherwise the last ``@``
separates model and set. The name is resolved in the body, before any handler looks it up, so handlers know models only.
"""

from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.errors import FieldError
from ropeswitch.model_patches.switch.placement import FORCED_FIELD, named_set

SEPARATOR = "@"


@dataclass(frozen=True)
class Alias:
    """The model name ``MODEL@SET`` of a request: the whole name, the model's own name and the set."""

    name: str
    model: str
    factor_set: str


@dataclass(frozen=True)
class Aliases:
    """The model names of one server."""

    models: Any  # vLLM's `OpenAIServingModels`
    sets: tuple[str, ...]  # names of the factor sets
    listed: bool = False  # whether /v1/models lists the aliases

    def find(self, name: object) -> Alias | None:
        """Return the alias that a body's ``model`` is, or None.

        Raises:
            FieldError: for a served model with an unknown set.
        """
        if not isinstance(name, str) or SEPARATOR not in name or self._serves(name):
            return None
        model, _, factor_set = name.rpartition(SEPARATOR)
        if factor_set in self.sets:
            # A resolver may know an adapter of that name; vLLM answers for a model that no one knows.
            return Alias(name, model, factor_set)
        if self._serves(model):
            raise FieldError(
                "model",
                "{name!r} asks for the unknown factor set {factor_set!r} of {model!r}; known sets: {sets}",
                name=name,
                factor_set=factor_set,
                model=model,
                sets=", ".join(map(repr, self.sets)),
            )
        return None

    def check(self, asked: object, alias: Alias | None) -> None:
        """Check the set that a body names in ``vllm_xargs``, before a stream begins.

        Raises:
            FieldError: for an unknown set, or another one than the model's name asks for.
        """
        if asked is None:
            return
        named_set(self.sets, asked)
        if alias is not None and asked != alias.factor_set:
            raise FieldError(
                "model",
                "{name!r} asks for another factor set than {field}, {asked!r}; leave one of them out",
                name=alias.name,
                field=FORCED_FIELD,
                asked=asked,
            )

    def cards(self, cards: list[Any]) -> list[Any]:
        """Return model cards with those of the aliases, if they are listed."""
        names = {card.id for card in cards}
        listed = [(card, f"{card.id}{SEPARATOR}{each}") for card in cards for each in self.sets if self.listed]
        return cards + [
            card.model_copy(update={"id": name, "parent": card.id}) for card, name in listed if name not in names
        ]

    def _serves(self, name: str) -> bool:
        return name in self.models.lora_requests or self.models.is_base_model(name)
