"""Evaluates a server with OpenAI's API. If it lists its factor sets (``GET /v1/rope``), each can be requested by name."""

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ropeswitch.factors.evaluate.endpoint import Endpoint, connect
from ropeswitch.factors.evaluate.posts import Posts, nonsense, posting
from ropeswitch.factors.evaluate.target import SERVED, SWITCHED, Window, special_tokens
from ropeswitch.factors.evaluate.tokenizers import LocalTokenizer, ServedTokenizer, Tokenizer
from ropeswitch.factors.factor_set import SET_HEADER, FactorError
from ropeswitch.model_patches.switch.config.settings import FORCED_SET

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
# vLLM's replacement for minus infinity, which JSON cannot represent.
NO_CHANCE = -9999.0


class EndpointTarget:
    """See :class:`~ropeswitch.factors.evaluate.target.Target`.

    Losses are the log-probabilities that ``echo`` with ``logprobs`` returns for a prompt of token ids, as in
    lm-evaluation-harness; each request also generates one token.
    """

    def __init__(self, endpoint: Endpoint, tokenizer: Tokenizer, chat: bool, timeout: int, concurrency: int) -> None:
        """Use :meth:`connect`."""
        self._endpoint, self._tokenizer = endpoint, tokenizer
        self._chat, self._timeout, self._concurrency = chat, timeout, concurrency
        names = [each["name"] for each in endpoint.sets]
        if taken := next((each for each in names if names.count(each) > 1 or each in (SWITCHED, SERVED)), None):
            raise FactorError(
                f"{endpoint.url}/v1/rope: sets: the name {taken!r} is duplicate or reserved, so the set cannot be requested"
            )
        self.sets: tuple[str, ...] = (SWITCHED, *names) if names else (SERVED,)
        self.opening, appended = special_tokens(tokenizer.text)
        if appended:
            raise FactorError(f"{endpoint.url}: the tokenizer appends special tokens to a text, which is unsupported")

    @classmethod
    def connect(
        cls, url: str, model: str | None, tokenizer: str | None, chat: bool, timeout: int = 3600, concurrency: int = 4
    ) -> "EndpointTarget":
        """Connect to a server and read its models and factor sets.

        ``tokenizer`` is a folder with the served model's tokenizer, or None for the server's; ``timeout`` holds
        for one request, in seconds; ``concurrency`` bounds the requests in flight. For the others see ``endpoint.connect``.
        """
        endpoint = connect(url, model, None, wait=0)
        tokenize = ServedTokenizer(endpoint) if tokenizer is None else LocalTokenizer(tokenizer)
        return cls(endpoint, tokenize, chat, timeout, concurrency)

    def longest(self, set_name: str) -> int | None:
        # vLLM refuses a prompt of that many tokens, also for one token of output. The last token of a reply is not counted.
        most = self._endpoint.max_model_len
        return None if most is None else most - 1

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.chat([{"role": "user", "content": text}]) if self._chat else self._tokenizer.text(text)

    def plain_ids(self, text: str) -> list[int]:
        return self._tokenizer.text(text, special=False)

    def losses(self, windows: Sequence[Window], set_name: str) -> Iterator[list[float]]:
        def body(window: Window) -> dict[str, Any]:
            return {"prompt": list(window.ids), "max_tokens": 1, "echo": True, "logprobs": 1}

        def read(answer: Any, window: Window) -> list[float]:
            logprobs = answer["choices"][0].get("logprobs")
            if not logprobs or len(logprobs["token_logprobs"]) < len(window.ids):
                raise FactorError(
                    f"{self._endpoint.url}: returns no log-probabilities for a prompt (echo with logprobs), so perplexity "
                    "cannot be measured"
                )
            returned = [float(each) for each in logprobs["token_logprobs"][window.first : len(window.ids)]]
            return [math.inf if each <= NO_CHANCE else -each for each in returned]

        lengths = [len(window.ids) for window in windows]
        yield from self._ask_all(COMPLETIONS, windows, body, read, lengths, set_name)

    def replies(self, prompts: Sequence[str], set_name: str, new_tokens: int) -> Iterator[str]:
        def body(prompt: str) -> dict[str, Any]:
            asked = {"messages": [{"role": "user", "content": prompt}]} if self._chat else {"prompt": prompt}
            return {**asked, "max_tokens": new_tokens}

        def read(answer: Any, prompt: str) -> str:
            choice = answer["choices"][0]
            text = choice["message"]["content"] if self._chat else choice["text"]
            if text is not None and not isinstance(text, str):
                raise TypeError("no text")
            return text or ""

        lengths = [len(self.encode(prompt)) for prompt in prompts]
        yield from self._ask_all(CHATS if self._chat else COMPLETIONS, prompts, body, read, lengths, set_name)

    def _ask_all(
        self,
        path: str,
        items: Sequence[Any],
        body: Callable[[Any], dict[str, Any]],
        read: Callable[[Any, Any], Any],
        lengths: Sequence[int],
        set_name: str,
    ) -> list[Any]:
        """Send a request per item and return the results of ``read``, in order."""
        forced = {} if set_name in (SWITCHED, SERVED) else {"vllm_xargs": {FORCED_SET: set_name}}
        more = {"model": self._endpoint.model, "temperature": 0, "stream": False, **forced}

        async def ask(posts: Posts, item: Any, length: int) -> Any:
            headers, answer = await posts.send(path, body(item) | more)
            self._check(answer, headers, length, set_name if forced else None)
            try:
                return read(answer, item)
            except FactorError:
                raise
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                raise nonsense(self._endpoint.url + path, json.dumps(answer).encode()) from error

        async def all_of_them() -> list[Any]:
            async with posting(self._endpoint, self._timeout, self._concurrency) as posts:
                async with asyncio.TaskGroup() as group:
                    asked = zip(items, lengths, strict=True)
                    tasks = [group.create_task(ask(posts, *each)) for each in asked]
                return [task.result() for task in tasks]

        try:
            return asyncio.run(all_of_them())
        except* FactorError as errors:
            # The first error cancelled the other requests.
            raise errors.exceptions[0] from None

    def _check(self, answer: Any, headers: Any, length: int, forced: str | None) -> None:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        counted = usage.get("prompt_tokens", length) if isinstance(usage, dict) else length
        if counted != length:
            raise FactorError(
                f"{self._endpoint.url}: counted {counted} tokens in a prompt of {length}; check that --tokenizer is the "
                "served model's, and whether the server uses its own chat template"
            )
        used = headers.get(SET_HEADER)
        if forced is not None and used is not None and used != forced:
            raise FactorError(f"{self._endpoint.url}: rotated with set {used!r} although {forced!r} was requested")

    def describe(self) -> dict[str, Any]:
        return {"url": self._endpoint.url, "model": self._endpoint.model, "chat": self._chat}

    def describe_set(self, set_name: str) -> Any:
        if set_name in (SWITCHED, SERVED):
            return list(self._endpoint.sets)
        return next(each for each in self._endpoint.sets if each["name"] == set_name)
