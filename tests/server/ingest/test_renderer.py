"""Which texts are tokenized where, and which token IDs are looked at."""

import asyncio
import threading
from typing import Any

import pytest
from transformers import AutoTokenizer
from vllm.renderers.hf import HfRenderer

from ropeswitch.server.front.bodies import long_prompts as module
from ropeswitch.server.front.bodies.long_prompts import separate_long_prompts
from ropeswitch.server.front.bodies.parse import TokenIds
from tests.passkey_tiny import FOLDER


class Renderer(HfRenderer):
    """Says where its tokenizer is called, and what is validated."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(FOLDER)
        self.validated: list[Any] = []
        self._tokenize_prompt_async = self._upstream

    async def _upstream(self, prompt: Any, params: Any) -> Any:
        return "upstream"

    def _tokenize_prompt(self, prompt: Any, params: Any) -> Any:
        return threading.current_thread().name

    def validate_token_ids(self, token_ids: Any, *, parameter: str | None = None) -> None:
        self.validated.append((token_ids, parameter))


def test_where_texts_are_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG", 10)
    renderer = Renderer()
    separate_long_prompts(renderer)

    def tokenized(length: int) -> Any:
        return asyncio.run(renderer._tokenize_prompt_async({"prompt": "a" * length}, None))

    assert tokenized(10) == "upstream" and tokenized(11).startswith("tokenize-long")


def test_of_token_ids_whose_range_is_known_the_ends_are_looked_at() -> None:
    renderer = Renderer()
    separate_long_prompts(renderer)
    renderer.validate_token_ids([3, 1, 2])
    renderer.validate_token_ids(TokenIds([[3, 1], [7, 2]]), parameter="prompt")
    assert renderer.validated == [([3, 1, 2], None), ([1, 7], "prompt")]
