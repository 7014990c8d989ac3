"""Tokenizes text as the server does: through the server, or with a local copy of its tokenizer."""

from typing import Any, Protocol

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.endpoint import Endpoint

Messages = list[dict[str, str]]


class Tokenizer(Protocol):
    """Tokenizes text exactly as the server does."""

    def text(self, text: str, special: bool = True) -> list[int]:
        """Return the token ids of a completion's prompt, with special tokens or without."""

    def chat(self, messages: Messages) -> list[int]:
        """Return the token ids of a chat, through the chat template, up to the start of the answer."""


class ServedTokenizer:
    """The server's tokenizer, through ``POST /tokenize``, which vLLM servers have."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def text(self, text: str, special: bool = True) -> list[int]:
        return self._ask({"prompt": text, "add_special_tokens": special})

    def chat(self, messages: Messages) -> list[int]:
        return self._ask({"messages": messages, "add_generation_prompt": True})

    def _ask(self, question: dict[str, Any]) -> list[int]:
        answer = self._endpoint.post("/tokenize", {"model": self._endpoint.model, **question})
        content = answer.json if answer.status == 200 else None
        found = content.get("tokens") if isinstance(content, dict) else None
        if not isinstance(found, list) or not all(type(each) is int for each in found):
            said = answer.message if answer.status != 200 else f"{answer.body[:100]!r}, which has no tokens"
            raise UsageError(
                f"{self._endpoint.url}/tokenize answered {answer.status} ({said}): tokens cannot be counted. Set "
                "--tokenizer to the folder of the served model's tokenizer"
            )
        return found


class LocalTokenizer:
    """A tokenizer that transformers loads from a folder, for servers without ``/tokenize``."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise UsageError(f"--tokenizer {folder!r}: {(str(error) or repr(error)).splitlines()[0]}") from error
        # transformers warns about longer texts.
        self._tokenizer.model_max_length = 1 << 62

    def text(self, text: str, special: bool = True) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        return found

    def chat(self, messages: Messages) -> list[int]:
        if not self._tokenizer.chat_template:
            raise UsageError("--tokenizer has no chat template: choose another, or measure completions")
        found: list[int] = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return found
