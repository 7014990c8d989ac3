"""Requests of a verification, and what it reads in their answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ropeswitch.factors.evaluate.posts import Posts
from ropeswitch.factors.factor_set import SET_HEADER, FactorError
from ropeswitch.loadtests.verify.plan import LONGEST_OTHER, OTHERS, Case, Words
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
    """An answer: its prompt and own tokens, the latter's log-probabilities, and the set that its header names, if any."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    named_set: str | None


@dataclass
class Client:
    """Asks one server. ``salt`` keeps this run's prompts from earlier ones' cached blocks."""

    posts: Posts
    salt: str
    _scored: dict[tuple[str, tuple[int, ...]], list[float]] = field(default_factory=dict)

    async def answer(self, case: Case) -> Answer:
        """Send a case and return its answer; FactorError if it has no log-probabilities."""
        body = {**SAMPLED, **self._common(case.forced), "max_tokens": case.answer, "seed": len(case.prompt)}
        if case.text is None:
            headers, found = await self.posts.send(COMPLETIONS, body | {"prompt": list(case.prompt), "logprobs": 0})
        else:
            message = [{"role": "user", "content": case.text}]
            asked = body | {"messages": message, "logprobs": True, "top_logprobs": 0, "stream": True}
            headers, found = await self.posts.send(CHATS, asked)
        try:
            prompt, made, log_probs = _completion(found, case) if case.text is None else _chat(found)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._silent("an answer") from error
        if len(made) != case.answer or len(log_probs) != case.answer:
            raise self._silent(f"each of an answer's {case.answer} tokens")
        return Answer(prompt, made, log_probs, headers.get(SET_HEADER))

    async def scores(self, tokens: tuple[int, ...], factor_set: str) -> list[float]:
        """Return the log-probability of each of ``tokens`` but the first, computed whole in one set."""
        if (key := (factor_set, tokens)) not in self._scored:
            body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
            _, found = await self.posts.send(COMPLETIONS, body | self._common(factor_set))
            try:
                entries = found["choices"][0]["prompt_logprobs"][1:]
                values = [float(each[str(token)]["logprob"]) for token, each in zip(tokens[1:], entries, strict=True)]
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise self._silent("a prompt (prompt_logprobs)") from error
            self._scored[key] = values
        return self._scored[key]

    async def others(self, words: Words, sets: Sequence[str]) -> None:
        """Keep :data:`OTHERS` requests in flight, some in sets that they name, until cancelled."""

        async def one() -> None:
            while True:
                forced = (*sets, None)[int(words.random.integers(len(sets) + 1))]
                prompt = words.cut(int(words.random.integers(16, LONGEST_OTHER)))
                body = {**self._common(forced), "prompt": list(prompt), "max_tokens": 64, "ignore_eos": True}
                await self.posts.send(COMPLETIONS, body)

        async with asyncio.TaskGroup() as group:
            for _ in range(OTHERS):
                group.create_task(one())

    def _common(self, forced: str | None) -> dict[str, Any]:
        asked = {"model": self.posts.endpoint.model, "cache_salt": self.salt}
        return asked | ({} if forced is None else {"vllm_xargs": {FORCED_SET: forced}})

    def _silent(self, what: str) -> FactorError:
        return FactorError(
            f"{self.posts.endpoint.url}: returns no log-probabilities for {what}, so nothing can be compared"
        )


Read = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


def _completion(answer: Any, case: Case) -> Read:
    [choice] = answer["choices"]
    return case.prompt, tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])


def _chat(events: Any) -> Read:
    choices = [choice for event in events for choice in event["choices"]]
    log_probs = [
        each["logprob"] for choice in choices if choice.get("logprobs") for each in choice["logprobs"]["content"]
    ]
    tokens = [token for choice in choices for token in choice.get("token_ids") or ()]
    return tuple(events[0]["prompt_token_ids"]), tuple(tokens), tuple(log_probs)
