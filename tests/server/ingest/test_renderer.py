"""Which texts are tokenized where, and which token IDs are looked at."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer
from vllm.renderers.hf import HfRenderer

from ropeswitch.server.ingest import renderer as module
from ropeswitch.server.ingest.renderer import take_long_prompts
from ropeswitch.server.ingest.text_process import TextProcess
from ropeswitch.server.ingest.token_ids import TokenIds
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

    def _wants_offsets(self, prompt: Any, params: Any) -> bool:
        return bool(params.offsets)

    def validate_token_ids(self, token_ids: Any, *, parameter: str | None = None) -> None:
        self.validated.append((token_ids, parameter))


def params(*, offsets: bool = False) -> Any:
    return SimpleNamespace(offsets=offsets, get_encode_kwargs=lambda: {"truncation": True, "max_length": 5})


@pytest.fixture(autouse=True)
def lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG", 10)
    monkeypatch.setattr(module, "VERY_LONG", 20)


@pytest.mark.parametrize("picklable", [True, False])
def test_where_texts_are_tokenized(picklable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer, seen = Renderer(), []

    def token_ids(self: TextProcess, text: str, options: Any) -> TokenIds:
        seen.append((text, options, threading.current_thread().name.rsplit("_")[0]))
        return TokenIds([[5]])

    monkeypatch.setattr(TextProcess, "token_ids", token_ids)
    take_long_prompts(renderer, picklable=picklable)

    def tokenized(length: int, **options: bool) -> Any:
        prompt = {"prompt": "a" * length, "cache_salt": "s"}
        return asyncio.run(renderer._tokenize_prompt_async(prompt, params(**options)))

    assert tokenized(10) == "upstream"
    assert tokenized(11).startswith("tokenize-long") and tokenized(20).startswith("tokenize-long")
    # Only the renderer itself finds where in the text each token is.
    assert tokenized(21, offsets=True).startswith("tokenize-long") and not seen
    if picklable:
        assert tokenized(21) == {"prompt": "a" * 21, "cache_salt": "s", "prompt_token_ids": [5]}
        assert seen == [("a" * 21, {"truncation": True, "max_length": 5}, "text-process")]
    else:
        assert tokenized(21).startswith("tokenize-long") and not seen


def test_upstream_s_own_class_can_be_extended_in_place() -> None:
    renderer: Any = HfRenderer.__new__(HfRenderer)
    renderer.tokenizer = None
    take_long_prompts(renderer, picklable=False)
    assert type(renderer).__bases__ == (HfRenderer,)


def test_of_token_ids_whose_range_is_known_the_ends_are_looked_at() -> None:
    renderer = Renderer()
    take_long_prompts(renderer, picklable=False)
    renderer.validate_token_ids([3, 1, 2])
    renderer.validate_token_ids(TokenIds([[3, 1], [7, 2]]), parameter="prompt")
    assert renderer.validated == [([3, 1, 2], None), ([1, 7], "prompt")]
