"""``vllm.entrypoints.openai.models.serving.OpenAIServingModels``: subclassed so that ``MODEL@SET`` is a model name.

``MODEL`` is a served name or a LoRA adapter, ``SET`` a factor set: all requests for ``qwen3@128k`` go to the model ``qwen3``
and are rotated with the set ``128k``.

Every handler looks up a request's model in one ``OpenAIServingModels``, so no other code handles such names. The lookup
records the alias in the request's context; the engine client forces its set (:func:`forcing`), and the response's ``model``
is the alias.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ropeswitch.model_patches.switch.config.settings import FORCED_SET
from ropeswitch.server import vllm_adapter
from ropeswitch.server.context import Alias, RequestContext, current
from ropeswitch.server.in_place import become

SEPARATOR = "@"


@dataclass(frozen=True)
class Aliases:
    """The model names of one server.

    Attributes:
        exact: Its models as vLLM serves them, without aliases.
        sets: The names of its factor sets.
        listed: Whether ``/v1/models`` lists the aliases.
    """

    exact: Any
    sets: tuple[str, ...]
    listed: bool

    def resolve(self, name: object) -> object:
        """Return the served name of an alias, and record the alias in the request's context; return other names unchanged.

        A served name wins over an alias of the same spelling; otherwise the last ``@`` separates model and set. Without a
        context no set could be forced, so no name is an alias.

        Raises:
            vllm.exceptions.VLLMValidationError: answered with a 400, when the model is served and the set is unknown.
        """
        context = current.get()
        if context is None:
            return name
        # /invocations reads the model from a header, and drops the body's.
        asked = context.model if name is None else name
        if not isinstance(asked, str) or self._serves(asked):
            return name
        model, separator, factor_set = asked.rpartition(SEPARATOR)
        if not separator or not self._serves(model):
            return name
        if factor_set not in self.sets:
            raise vllm_adapter.validation_error(
                f"model: {asked!r} asks for the unknown factor set {factor_set!r} of {model!r}; known sets: "
                f"{', '.join(map(repr, self.sets))}",
                "model",
            )
        context.alias = Alias(asked, factor_set)
        return model

    def names(self, model: str) -> list[str]:
        """Return the aliases of a served name that ``/v1/models`` lists."""
        return [f"{model}{SEPARATOR}{each}" for each in self.sets] if self.listed else []

    def _serves(self, name: str) -> bool:
        return name in self.exact.lora_requests or self.exact.is_base_model(name)


class Adapters(Mapping[str, Any]):
    """Maps names of loaded LoRA adapters, and their aliases, to the adapters; iterates over the names only."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self._exact: dict[str, Any] = aliases.exact.lora_requests

    def __getitem__(self, name: str) -> Any:
        return self._exact[self._aliases.resolve(name)]  # type: ignore[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._exact)

    def __len__(self) -> int:
        return len(self._exact)


class AliasedModels(vllm_adapter.OpenAIServingModels):
    """The object in which handlers look up a request's model.

    Attributes:
        ropeswitch: The names; apart from lookups, model lists and the loading of adapters use the exact names.
    """

    ropeswitch: Aliases

    def is_base_model(self, model_name: str) -> bool:
        return super().is_base_model(self.ropeswitch.resolve(model_name))

    def model_name(self, lora_request: Any = None) -> str:
        context = current.get()
        return super().model_name(lora_request) if context is None or context.alias is None else context.alias.model

    async def show_available_models(self) -> Any:
        models = await self.ropeswitch.exact.show_available_models()
        names = {card.id for card in models.data}
        models.data += [
            card.model_copy(update={"id": alias, "parent": card.id})
            for card in list(models.data)
            for alias in self.ropeswitch.names(card.id)
            if alias not in names
        ]
        return models

    async def load_lora_adapter(self, *args: Any, **kwargs: Any) -> Any:
        return await self.ropeswitch.exact.load_lora_adapter(*args, **kwargs)

    async def unload_lora_adapter(self, *args: Any, **kwargs: Any) -> Any:
        return await self.ropeswitch.exact.unload_lora_adapter(*args, **kwargs)

    async def resolve_lora(self, lora_name: str) -> Any:
        found = await self.ropeswitch.exact.resolve_lora(lora_name)
        model, separator, _ = lora_name.rpartition(SEPARATOR)
        error = getattr(found, "error", None)
        if not separator or error is None or error.code != HTTPStatus.NOT_FOUND:
            return found
        # Once the adapter is loaded, its alias is found like any other.
        return await self.ropeswitch.exact.resolve_lora(model)


def accept_aliases(models: Any, sets: tuple[str, ...], *, listed: bool) -> None:
    """Make a server's models accept ``MODEL@SET`` as a name.

    Args:
        models: The app's ``OpenAIServingModels``, with its static LoRA adapters loaded.
        sets: The names of the factor sets.
        listed: Whether ``/v1/models`` lists the aliases.

    Raises:
        TypeError: when the models are of another class.
    """
    # The copy shares everything with the object that handlers hold, so adapters loaded later are in both.
    aliases = Aliases(copy.copy(models), sets, listed)
    become(models, AliasedModels)
    models.ropeswitch = aliases
    models.lora_requests = Adapters(aliases)


def alias_set(params: Any, context: RequestContext | None) -> str | None:
    """Return the set that a request's model name asks for, or None.

    Args:
        params: ``vllm.SamplingParams``, ``BeamSearchParams`` or ``PoolingParams`` of one of its prompts.
        context: The request's context.

    Raises:
        vllm.exceptions.VLLMValidationError: answered with a 400, when ``vllm_xargs`` asks for another set.
    """
    if context is None or (alias := context.alias) is None:
        return None
    values = getattr(params, "extra_args", None) or {}
    asked = values.get(FORCED_SET) if context.asked is None else context.asked
    if asked not in (None, alias.factor_set):
        raise vllm_adapter.validation_error(
            f"model: {alias.model!r} asks for the factor set {alias.factor_set!r}, but vllm_xargs.{FORCED_SET} for "
            f"{asked!r}; leave one of them out",
            "model",
        )
    return alias.factor_set
