"""How the served tokenizer cuts texts: asked of the server, or of a tokenizer at hand."""

from typing import Any, Protocol

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.endpoint import Endpoint

Messages = list[dict[str, str]]


class Tokenizer(Protocol):
    """What counts tokens just as the server does."""

    def text(self, text: str) -> list[int]:
        """Token ids of the prompt of a completion, special tokens included."""

    def chat(self, messages: Messages) -> list[int]:
        """Token ids of a chat, by the chat template, up to where the answer begins."""


class ServedTokenizer:
    """The server's own, by ``POST /tokenize``, which vLLM's servers have."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def text(self, text: str) -> list[int]:
        return self._ask({"prompt": text, "add_special_tokens": True})

    def chat(self, messages: Messages) -> list[int]:
        return self._ask({"messages": messages, "add_generation_prompt": True})

    def _ask(self, question: dict[str, Any]) -> list[int]:
        answer = self._endpoint.post("/tokenize", {"model": self._endpoint.model, **question})
        if answer.status != 200:
            raise UsageError(
                f"{self._endpoint.url}/tokenize answered {answer.status} ({answer.message}): token counts cannot be exact; "
                "give --tokenizer with the folder of the served model's tokenizer"
            )
        content = answer.json
        found = content.get("tokens") if isinstance(content, dict) else None
        if not isinstance(found, list) or not all(type(each) is int for each in found):
            raise UsageError(
                f"{self._endpoint.url}/tokenize answered {answer.body[:100]!r}, which has no tokens: give --tokenizer with "
                "the folder of the served model's tokenizer"
            )
        return found


class LocalTokenizer:
    """A tokenizer that transformers loads from a folder, for servers without ``/tokenize``."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise UsageError(f"--tokenizer {folder!r}: {error}") from error

    def text(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text)
        return found

    def chat(self, messages: Messages) -> list[int]:
        if not self._tokenizer.chat_template:
            raise UsageError("--tokenizer has no chat template: choose a workload with endpoint: completions")
        found: list[int] = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return found
