"""A server whose answers to a prompt are what a test says. One token per character, 1 before every prompt."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.loadtests.client import scripted

BEGIN = 1
# Log-probability of every token of a prompt, by the factor set that it asks for.
LOGPROBS = {None: -1.0, "short": -2.0, "long": -3.0}


@dataclass
class Scripted(scripted.Scripted):
    """Attributes:
    sets: Sets that /v1/rope lists; None for 404.
    change: Makes another answer of the right one.
    """

    sets: list[dict[str, Any]] | None = None
    change: Callable[[dict[str, Any]], Any] = lambda answer: answer
    status: int = 200
    header: str | None = None
    card: dict[str, Any] = field(default_factory=dict)

    async def _rope(self, request: web.Request) -> web.Response:
        return web.json_response({"sets": self.sets}) if self.sets is not None else web.Response(status=404)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        begin = [BEGIN] if body.get("add_special_tokens", True) else []
        return web.json_response({"tokens": [*begin, *map(ord, text)]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.status != 200:
            return web.json_response({"error": {"message": "not today"}}, status=self.status)
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        forced = body.get("vllm_xargs", {}).get("rope_factor_set")
        count = len(prompt) if isinstance(prompt, list) else len(prompt) + 1
        # Finds keys unless the short set is asked for.
        is_blind = forced == "short" or isinstance(prompt, list)
        reply = "?" if is_blind else " " + prompt.partition("The pass key is ")[2].partition(".")[0]
        choice: dict[str, Any] = {"text": reply} if "prompt" in body else {"message": {"content": reply}}
        if body.get("echo"):
            choice["logprobs"] = {"token_logprobs": [None, *[LOGPROBS[forced]] * (count - 1), math.log(0.5)]}
        answer = self.change({"choices": [choice], "usage": {"prompt_tokens": count}})
        header = self.header or forced
        headers = {"x-rope-factor-set": header} if self.sets is not None and header else {}
        if isinstance(answer, str):
            return web.Response(text=answer, headers=headers)
        return web.json_response(answer, headers=headers)
