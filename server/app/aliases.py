"""``MODEL@SET`` as a model name: a request for ``qwen3@128k`` goes to the model ``qwen3``, rotated with the set ``128k``.

``MODEL`` is a served name or a LoRA adapter. A served name wins over an alias of the same spelling; otherwise the last ``@``
separates model and set. The name is resolved in the body, before any handler looks it up, so handlers know models only.
"""

import json
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ropeswitch.factors.errors import FieldError
from ropeswitch.model_patches.switch.engine.process_inputs import set_of_model_name
from ropeswitch.model_patches.switch.placement import FORCED_FIELD
from ropeswitch.server.front.error_bodies import refusal_body
from ropeswitch.server.front.refusal import invalid_body

SEPARATOR = "@"
_BODY = "http.request"


@dataclass(frozen=True)
class Alias:
    """The model name ``MODEL@SET`` of a request.

    Attributes:
        name: The whole name.
        model: The model's own name.
        factor_set: The set that it asks for.
    """

    name: str
    model: str
    factor_set: str


@dataclass(frozen=True)
class Aliases:
    """The model names of one server.

    Attributes:
        models: ``vllm.entrypoints.openai.models.serving.OpenAIServingModels``.
        sets: The names of its factor sets.
        listed: Whether ``/v1/models`` lists the aliases.
    """

    models: Any
    sets: tuple[str, ...]
    listed: bool = False

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
        if not isinstance(asked, str):
            raise FieldError(FORCED_FIELD, "{asked!r} must be the name of a factor set", asked=asked)
        if alias is not None and asked != alias.factor_set:
            raise FieldError(
                "model",
                "{name!r} asks for the factor set {factor_set!r}, but {field} for {asked!r}; leave one of them out",
                name=alias.name,
                factor_set=alias.factor_set,
                field=FORCED_FIELD,
                asked=asked,
            )
        if asked not in self.sets:
            known = ", ".join(map(repr, self.sets))
            raise FieldError(
                FORCED_FIELD, "unknown factor set {asked!r}; this server has {known}", asked=asked, known=known
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


class AliasedBodies:
    """Middleware of plain ``vllm serve``: replaces an alias in a JSON body by its model, and forces its set.

    ``ropeswitch serve`` does the same where it parses a body (``bodies/request.py``).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        aliases: Aliases = scope["app"].state.ropeswitch.aliases
        messages = [await receive()]
        while messages[-1]["type"] == _BODY and messages[-1].get("more_body", False):
            messages.append(await receive())
        body = b"".join(each.get("body", b"") for each in messages)
        values = _object(body)
        try:
            alias = aliases.find(values.get("model"))
        except FieldError as error:
            content = refusal_body(invalid_body(f"model: {error.reason}", "model"), anthropic=False)
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": content})
            return
        if alias is not None:
            body = json.dumps({**values, "model": alias.model}).encode()
            lengthy = [header for header in scope["headers"] if header[0] != b"content-length"]
            scope = {**scope, "headers": [*lengthy, (b"content-length", str(len(body)).encode())]}
            messages = [{"type": _BODY, "body": body, "more_body": False}]
        token = set_of_model_name.set(None if alias is None else alias.factor_set)
        left = iter(messages)

        async def replayed() -> Message:
            return next(left, None) or await receive()

        try:
            await self.app(scope, replayed, send)
        finally:
            set_of_model_name.reset(token)


def _object(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object that may name an alias; empty for any other body."""
    if SEPARATOR.encode() not in body:
        return {}
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
