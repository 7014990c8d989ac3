"""A prompt that takes minutes, asked as a stream that says how far it is."""

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from tests.loadtests.million.model import VOCABULARY
from tests.server.running import Server

# Seconds between two lines of progress.
EVERY = 20.0


@dataclass(frozen=True)
class Answer:
    """What came of a request."""

    tokens: list[int]
    log_probs: list[dict[int, float]]
    text: str
    factor_set: str | None
    prompt_tokens: int
    cached_tokens: int


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def ask(server: Server, model: str, prompt: list[int] | str, max_tokens: int, what: str) -> Answer:
    """Ask for a greedy completion with the log-probabilities of the whole vocabulary."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": VOCABULARY,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
    }
    started = printed = time.monotonic()
    tokens: list[int] = []
    log_probs: list[dict[int, float]] = []
    text = ""
    first_token = 0.0
    usage: dict[str, Any] = {}
    stage = "sent"
    # A line comes every few seconds, if only a comment that says that the stream lives.
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        if response.status_code != 200:
            raise AssertionError(f"{what}: {response.status_code} {response.read().decode()[:2000]}")
        for line in response.iter_lines():
            event = json.loads(line[6:]) if line.startswith("data: {") else {}
            assert "error" not in event, event
            usage = event.get("usage") or usage
            if progress := event.get("prompt_progress"):
                stage = f"{progress['processed']} of {progress['total']} tokens of the prompt"
            for choice in event.get("choices", ()):
                first_token = first_token or time.monotonic() - started
                tokens += choice["token_ids"]
                log_probs += [_by_id(each) for each in choice["logprobs"]["top_logprobs"]]
                text += choice["text"]
                stage = f"{len(tokens)} of {max_tokens} tokens of the answer"
            if time.monotonic() > printed + EVERY:
                printed = time.monotonic()
                say(f"{what}: {printed - started:.0f} s, {stage}")
    seconds = time.monotonic() - started
    say(f"{what}: answered after {seconds:.1f} s, the first token after {first_token:.1f} s")
    return Answer(
        tokens,
        log_probs,
        text,
        response.headers.get("x-rope-factor-set"),
        usage["prompt_tokens"],
        (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
    )


def _by_id(entry: dict[str, float]) -> dict[int, float]:
    return {int(name.removeprefix("token_id:")): value for name, value in entry.items()}
