"""Long bodies and texts on a real server: they are answered as short ones are, and prompts tell how far they are."""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from ropeswitch.server.front.bodies.request import VERY_LONG
from tests.server.conftest import MODEL
from tests.server.running import Answer, Server

PROMPT = [1 + (i * 13) % 250 for i in range(1000)]


def padded(**body: Any) -> bytes:
    """A body that spaces make long."""
    return json.dumps(body).encode() + b" " * VERY_LONG


def outcome(answer: Answer) -> Any:
    """The error, or texts and numbers of tokens; how many were cached depends on earlier requests."""
    if answer.status != 200:
        return answer.json
    usage = answer.json["usage"]
    return [each["text"] for each in answer.json["choices"]], usage["prompt_tokens"], usage["completion_tokens"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": PROMPT}, 200),
        ({"prompt": [PROMPT[:900], PROMPT[:200], PROMPT[:258]], "n": 2, "temperature": 1, "seed": 5}, 200),
        ({"prompt": PROMPT, "vllm_xargs": {"rope_factor_set": "long"}}, 200),
        *(({"prompt": prompt}, 400) for prompt in ([5] * 100_000, [5, 6, 700] * 300, [5] * 900 + ["x"])),
    ],
)
def test_a_long_body_gives_the_answer_of_a_short_one(server: Server, fields: dict[str, Any], status: int) -> None:
    body = {"model": MODEL, "max_tokens": 3, "temperature": 0, **fields}
    short, long = (server.post("/v1/completions", each) for each in (body, padded(**body)))
    assert (long.status, long.sets) == (status, short.sets), long.text
    assert outcome(long) == outcome(short)


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
