"""Requests of a verification, and what it reads in their answers."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

from ropeswitch.factors.evaluate.posts import Posts
from ropeswitch.factors.factor_set import SET_HEADER, FactorError
from ropeswitch.loadtests.verify.plan import OTHER_ANSWER, OTHER_PROMPT, OTHERS, Case, Ladder, Words
from ropeswitch.model_patches.switch.config.settings import FORCED_SET

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
# Sampled, since a model's own choices are often too sure to show a wrong rotation. Penalties and cuts that are a server's
# defaults would change the answer's log-probabilities, but not the prompt's.
SAMPLED = {
    "temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0,
    "frequency_penalty": 0, "ignore_eos": True, "return_token_ids": True,
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        prompt: Token ids of its prompt.
        tokens: Its own token ids, with their log-probabilities in ``log_probs``.
        named_set: The set in its header; None without one.
        cached: Tokens of its prompt that the prefix cache had; None if the server does not say.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    named_set: str | None
    cached: int | None


@dataclass
class Client:
    """Asks one server. ``salt`` keeps this run's prompts from earlier ones' cached blocks."""

    posts: Posts
    salt: str
    _scored: dict[tuple[str, tuple[int, ...]], list[float]] = field(default_factory=dict)

    async def answer(self, case: Case) -> Answer:
        """Send a case and return its answer; FactorError if it is refused, short or without log-probabilities."""
        body = {**SAMPLED, **self._common(case.forced, case.track), "max_tokens": case.answer, "seed": len(case.prompt)}
        if case.text is None:
            body |= {"prompt": list(case.prompt), "logprobs": 0}
        else:
            body |= {"messages": [{"role": "user", "content": case.text}], "logprobs": True, "top_logprobs": 0}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers, found = await self.posts.send(COMPLETIONS if case.text is None else CHATS, body)
        try:
            prompt, tokens, log_probs, usage = _completion(found, case) if case.text is None else _chat(found)
            log_probs = _finite(log_probs)
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise self._silent("an answer") from error
        if not len(tokens) == len(log_probs) == case.answer:
            raise self._silent(f"each of the {case.answer} tokens that were asked for; it has {len(tokens)} tokens")
        return Answer(prompt, tokens, log_probs, headers.get(SET_HEADER), cached)

    async def scores(self, tokens: tuple[int, ...], factor_set: str) -> list[float]:
        """Return the log-probability of each of ``tokens`` but the first, computed whole in one set."""
        for (name, longer), known in self._scored.items():
            if name == factor_set and longer[: len(tokens)] == tokens:
                return known[: len(tokens) - 1]
        body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        _, found = await self.posts.send(COMPLETIONS, body | self._common(factor_set, "scored"))
        try:
            entries = found["choices"][0]["prompt_logprobs"][1:]
            values = [each[str(token)]["logprob"] for token, each in zip(tokens[1:], entries, strict=True)]
            scores = self._scored[factor_set, tokens] = list(_finite(values))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._silent("a prompt (prompt_logprobs)") from error
        return scores

    async def others(self, words: Words, ladder: Ladder) -> None:
        """Keep :data:`OTHERS` requests in flight, some in sets that they name, until cancelled."""
        longest = min(OTHER_PROMPT, ladder.longest - OTHER_ANSWER)

        async def one() -> None:
            while True:
                forced = (*ladder.names, None)[int(words.random.integers(len(ladder.names) + 1))]
                prompt, answer = map(int, words.random.integers((16, 1), (longest, OTHER_ANSWER + 1)))
                body = {"prompt": list(words.cut(prompt)), "max_tokens": answer, "ignore_eos": True}
                await self.posts.send(COMPLETIONS, body | self._common(forced))

        async with asyncio.TaskGroup() as group:
            for _ in range(OTHERS):
                group.create_task(one())

    def _common(self, forced: str | None, track: str = "") -> dict[str, Any]:
        asked = {"model": self.posts.endpoint.model, "cache_salt": self.salt + track}
        return asked | ({} if forced is None else {"vllm_xargs": {FORCED_SET: forced}})

    def _silent(self, what: str) -> FactorError:
        return FactorError(
            f"{self.posts.endpoint.url}: returns no log-probabilities for {what}, so nothing can be compared"
        )


Read = tuple[tuple[int, ...], tuple[int, ...], Any, Any]


def _completion(answer: Any, case: Case) -> Read:
    [choice] = answer["choices"]
    return case.prompt, tuple(choice["token_ids"]), choice["logprobs"]["token_logprobs"], answer.get("usage") or {}


def _chat(events: Any) -> Read:
    if error := next((event["error"] for event in events if "error" in event), None):
        raise FactorError(f"a chat ended with an error: {error}")
    choices = [choice for event in events for choice in event["choices"]]
    log_probs = [
        each["logprob"] for choice in choices if choice.get("logprobs") for each in choice["logprobs"]["content"]
    ]
    tokens = [token for choice in choices for token in choice.get("token_ids") or ()]
    usage: Any = next((event["usage"] for event in reversed(events) if event.get("usage")), {})
    return tuple(events[0]["prompt_token_ids"]), tuple(tokens), log_probs, usage


def _finite(values: Any) -> tuple[float, ...]:
    """Return log-probabilities as floats; TypeError or ValueError for one that is not a finite number."""
    found = tuple(map(float, values))
    if not all(map(math.isfinite, found)):
        raise ValueError("not finite")
    return found
