"""Long bodies and texts on a real server: they are answered as short ones are, and prompts tell how far they are."""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from ropeswitch.server.front.bodies.parse import PIECE, TokenIds, parse
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
    # Its array is longer than a piece, and one piece of it ends among the numbers.
    array = b"[" + b" " * (PIECE - 2000) + json.dumps(prompt)[1:].encode()
    assert type(parse(b'{"prompt": ' + array + b"}")["prompt"]) is TokenIds
    sliced = json.dumps(body)[:-1].encode() + b', "prompt": ' + array + b"}"
    lists = [prompt[:900], prompt[:200], prompt[:258]]
    for given, content in (
        (prompt, sliced),
        (prompt, padded(**body, prompt=prompt)),
        (lists, padded(**body, prompt=lists)),
    ):
        long, short = server.post("/v1/completions", content), server.post("/v1/completions", {**body, "prompt": given})
        assert (long.status, long.sets) == (200, short.sets), long.text
        assert [each["text"] for each in long.json["choices"]] == [each["text"] for each in short.json["choices"]]
        assert tokens(long) == tokens(short)


@pytest.mark.full
def test_many_token_ids(server: Server) -> None:
    # 64 prompts of 1,000 make a quarter of a megabyte, which is parsed in slices.
    prompts = [[1 + (i * step) % 250 for i in range(1000)] for step in range(64)]
    body = {"model": MODEL, "prompt": prompts, "max_tokens": 1, "temperature": 0}
    answer = server.post("/v1/completions", padded(**body))
    assert answer.json["usage"]["prompt_tokens"] == 64_000
    again = server.post("/v1/completions", {**body, "prompt": prompts[5:7]})
    assert [each["text"] for each in again.json["choices"]] == [each["text"] for each in answer.json["choices"][5:7]]


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([5] * 100_000, "context_length_exceeded"),
        ([5, 6, 700] * 300, None),
        ([5] * 900 + [-1], None),
        ([5] * 900 + ["x"], None),
    ],
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


def test_a_chat_tells_its_progress_where_it_is_asked_to(client: OpenAI) -> None:
    for asked in (True, False):
        chat = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "p" * 700}],
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_progress": asked},
        )
        chunks = [chunk.model_dump() for chunk in chat]
        total = chunks[-1]["usage"]["prompt_tokens"]
        reports = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        assert bool(reports) is asked
        assert all(each["total"] == total and 0 <= each["cache"] <= each["processed"] <= total for each in reports)
        assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
        assert not any(chunk["choices"] for chunk in chunks if "prompt_progress" in chunk)


@pytest.mark.parametrize("path", ["/v1/completions", "/invocations"])
def test_every_route_to_completions_tells_progress_or_refuses_to(server: Server, path: str) -> None:
    body = {"model": MODEL, "prompt": [5] * 9, "max_tokens": 2, "stream": True, "return_progress": True}
    events = [line.removeprefix("data: ") for line in server.post(path, body).text.splitlines() if line]
    first, *_, last = (json.loads(event) for event in events[:-1])
    assert first["prompt_progress"]["total"] == 9 and events[-1] == "[DONE]"
    assert last["choices"] and (first["id"], first["object"], first["model"]) == (last["id"], last["object"], MODEL)
    for wrong in ({"return_progress": 1}, {"stream": False}):
        answer = server.post(path, body | wrong)
        assert (answer.status, answer.json["error"]["param"]) == (400, "return_progress")
