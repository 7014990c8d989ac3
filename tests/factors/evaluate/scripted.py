"""A server whose answers to a prompt are what a test says. One token per character, 1 before every prompt."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

BEGIN = 1


def ids_of(text: str) -> list[int]:
    return [ord(each) for each in text]


def logprob(set_name: str | None) -> float:
    """Of every token of a prompt."""
    return {None: -1.0, "short": -2.0, "long": -3.0}[set_name]


@dataclass
class Scripted:
    """Attributes:
    sets: What /v1/rope tells; None for ``rope_status``, which is 404 as where there is no such route.
    change: Makes another answer of the right one, or of ``None`` where there is a request only.
    asked: The bodies of all completions.
    """

    sets: list[dict[str, Any]] | None = None
    change: Callable[[dict[str, Any]], Any] = lambda answer: answer
    has_tokenize: bool = True
    status: int = 200
    rope_status: int = 404
    header: str | None = None
    max_model_len: int | None = None
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/rope", self._rope)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted", "max_model_len": self.max_model_len}]})

    async def _rope(self, request: web.Request) -> web.Response:
        return (
            web.json_response({"sets": self.sets}) if self.sets is not None else web.Response(status=self.rope_status)
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        if not self.has_tokenize:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.json()
        text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        begin = [BEGIN] if body.get("add_special_tokens", True) else []
        return web.json_response({"tokens": [*begin, *ids_of(text)]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.status != 200:
            return web.json_response({"error": {"message": "not today"}}, status=self.status)
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        forced = body.get("vllm_xargs", {}).get("rope_factor_set")
        count = len(prompt) if isinstance(prompt, list) else len(prompt) + 1
        # Finds keys unless the short set is asked for.
        reply = "?" if forced == "short" or isinstance(prompt, list) else " " + _key(prompt)
        choice: dict[str, Any] = {"text": reply} if "prompt" in body else {"message": {"content": reply}}
        if body.get("echo"):
            choice["logprobs"] = {"token_logprobs": [None, *[logprob(forced)] * (count - 1), math.log(0.5)]}
        answer = self.change({"choices": [choice], "usage": {"prompt_tokens": count}})
        header = self.header or forced
        headers = {"x-rope-factor-set": header} if self.sets is not None and header else {}
        if isinstance(answer, str):
            return web.Response(text=answer, headers=headers)
        return web.json_response(answer, headers=headers)


def _key(prompt: str) -> str:
    return prompt.partition("The pass key is ")[2].partition(".")[0]
