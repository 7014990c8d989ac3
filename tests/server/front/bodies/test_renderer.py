"""Which texts are tokenized where, and which token IDs are looked at."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.renderers.hf import HfRenderer
from vllm.tokenizers.registry import get_tokenizer

from ropeswitch.server.front.bodies import long_prompts as module
from ropeswitch.server.front.bodies.long_prompts import separate_long_prompts
from ropeswitch.server.front.bodies.parse import TokenIds
from ropeswitch.server.front.context import RequestContext, current
from tests.passkey_tiny import FOLDER


class Renderer(HfRenderer):
    """Says where its tokenizer is called, and what is validated."""

    def __init__(self) -> None:
        self.tokenizer = get_tokenizer(FOLDER)
        self.validated: list[Any] = []
        self._tokenize_prompt_async = self._upstream

    async def _upstream(self, prompt: Any, params: Any) -> Any:
        return "upstream"

    def _tokenize_prompt(self, prompt: Any, params: Any) -> Any:
        time.sleep(params if isinstance(params, float) else 0)
        return threading.current_thread().name

    def validate_token_ids(self, token_ids: Any, *, parameter: str | None = None) -> None:
        self.validated.append((token_ids, parameter))


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Renderer:
    monkeypatch.setattr(module, "LONG", 10)
    monkeypatch.setattr(module, "VERY_LONG", 20)
    made = Renderer()
    separate_long_prompts(made, 1000, ValueError)
    return made


def test_long_texts_are_tokenized_apart_up_to_the_longest_prompt(renderer: Renderer) -> None:
    most = 1000 * renderer.tokenizer.max_chars_per_token

    def tokenized(length: int, cut: int | None = None) -> Any:
        params = SimpleNamespace(truncate_prompt_tokens=cut)
        return asyncio.run(renderer._tokenize_prompt_async({"prompt": "a" * length}, params))

    assert tokenized(10) == "upstream" and tokenized(11).startswith("tokenize-long")
    assert tokenized(most).startswith("tokenize-very-long")
    with pytest.raises(ValueError, match=str(most)):
        tokenized(most + 1)
    assert tokenized(most + 1, cut=5).startswith("tokenize-very-long")


def test_one_clients_long_texts_do_not_hold_up_anothers(renderer: Renderer) -> None:
    done: list[str] = []

    async def tokenized(client: bytes, length: int, seconds: float) -> None:
        current.set(RequestContext(client=client))
        await renderer._tokenize_prompt_async({"prompt": "a" * length}, seconds)
        done.append(f"{client.decode()}{length}")

    async def all_at_once() -> None:
        asked = [tokenized(b"a", 21, 0.1) for _ in range(5)]
        await asyncio.gather(*asked, tokenized(b"b", 22, 0), tokenized(b"b", 11, 0))

    asyncio.run(all_at_once())
    assert done[0] == "b11" and done.index("b22") <= 2


def test_of_token_ids_whose_range_is_known_the_ends_are_looked_at(renderer: Renderer) -> None:
    renderer.validate_token_ids([3, 1, 2])
    renderer.validate_token_ids(TokenIds([[3, 1], [7, 2]]), parameter="prompt")
    assert renderer.validated == [([3, 1, 2], None), ([1, 7], "prompt")]
