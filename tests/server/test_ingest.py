"""Long bodies and texts on a real server: they are answered as short ones are, and prompts tell how far they are."""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from ropeswitch.server.front.bodies.request import VERY_LONG
from tests.server.conftest import MODEL
from tests.server.running import Answer, Server

# Spaces between the parts of JSON make any body long.
SPACE = b" " * VERY_LONG


def padded(**body: Any) -> bytes:
    return json.dumps({"model": MODEL, **body}).encode() + SPACE


def tokens(answer: Answer) -> tuple[int, int]:
    """An answer's numbers of prompt and generated tokens; how many were cached depends on earlier requests."""
    usage = answer.json["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


@pytest.mark.parametrize(
    "options", [{}, {"n": 2, "temperature": 1, "seed": 5}, {"vllm_xargs": {"rope_factor_set": "long"}}]
)
def test_a_long_body_gives_the_answer_of_a_short_one(server: Server, options: dict[str, Any]) -> None:
    prompt = [1 + (i * 13) % 250 for i in range(1000)]
    body = {"model": MODEL, "max_tokens": 3, "temperature": 0, **options}
    for given in (prompt, [prompt[:900], prompt[:200], prompt[:258]]):
        long, short = (
            server.post("/v1/completions", each) for each in (padded(**body, prompt=given), {**body, "prompt": given})
        )
        assert (long.status, long.sets) == (200, short.sets), long.text
        assert [each["text"] for each in long.json["choices"]] == [each["text"] for each in short.json["choices"]]
        assert tokens(long) == tokens(short)


@pytest.mark.parametrize(
    ("prompt", "code"),
    [([5] * 100_000, "context_length_exceeded"), ([5, 6, 700] * 300, None), ([5] * 900 + ["x"], None)],
)
def test_a_long_body_is_refused_as_a_short_one(server: Server, prompt: Any, code: str | None) -> None:
    short = server.post("/v1/completions", {"model": MODEL, "prompt": prompt})
    long = server.post("/v1/completions", padded(prompt=prompt))
    assert (long.status, long.json["error"]["code"]) == (400, code)
    assert long.json == short.json


def test_long_texts_are_tokenized_as_short_ones(client: OpenAI) -> None:
    for length in (100_000, 2 * VERY_LONG):
        text = "".join(chr(97 + (i * i) % 26) for i in range(1000))
        whole = client.completions.create(model=MODEL, prompt=text, max_tokens=4, temperature=0)
        # With a side named vLLM cuts the text before it is tokenized.
        options = {"truncate_prompt_tokens": 1000}
        cut = client.completions.create(
            model=MODEL, prompt=text * (length // 1000), max_tokens=4, temperature=0, extra_body=options
        )
        assert cut.usage and whole.usage and cut.choices[0].text == whole.choices[0].text
        assert cut.usage.prompt_tokens == whole.usage.prompt_tokens
        with pytest.raises(BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "y" * length}])
        assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/invocations"])
def test_every_stream_tells_its_progress_where_it_is_asked_to(server: Server, path: str) -> None:
    asked = {"messages": [{"role": "user", "content": "p" * 700}]} if "chat" in path else {"prompt": [5] * 700}
    body = {"model": MODEL, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}} | asked
    assert "prompt_progress" not in server.post(path, body).text
    lines = [line for line in server.post(path, body | {"return_progress": True}).text.splitlines() if line]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    total = chunks[-1]["usage"]["prompt_tokens"]
    reports = [chunk for chunk in chunks if "prompt_progress" in chunk]
    for each in (chunk["prompt_progress"] for chunk in reports):
        assert each["total"] == total and 0 <= each["cache"] <= each["processed"] <= total
    assert reports and not any(chunk["choices"] for chunk in reports)
    assert len({(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks}) == 1
    for wrong in ({"return_progress": 1}, {"return_progress": True, "stream": False, "stream_options": None}):
        answer = server.post(path, body | wrong)
        assert (answer.status, answer.json["error"]["param"]) == (400, "return_progress")
