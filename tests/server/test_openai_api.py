"""OpenAI's client and upstream's other routes against the patched engine, with the factor set named on each response.

``tests/clients`` has every feature of the clients; here is what depends on the sets.
"""

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.server.conftest import MODEL
from tests.server.running import Server

SHORT = "a" * 20
LONG = "b" * 300


def user(content: str) -> Any:
    return [{"role": "user", "content": content}]


def test_every_prompt_s_set_is_named_in_order(client: OpenAI) -> None:
    """The limit itself is short and one past it long, whole or streamed; several choices are one prompt."""
    for prompt, expected in (
        (SHORT, "short"),
        (LONG, "long"),
        ([SHORT, LONG, SHORT], "short, long, short"),
        ([[5] * 256, [5] * 257], "short, long"),
    ):
        response = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=4, n=2)  # type: ignore[call-overload]
        assert response.headers["x-rope-factor-set"] == expected
        completion = response.parse()
        lengths = [len(each) for each in (prompt if isinstance(prompt, list) else [prompt])]
        assert completion.usage.prompt_tokens == sum(lengths)
        assert [choice.index for choice in completion.choices] == list(range(2 * len(lengths)))
        with client.completions.with_streaming_response.create(
            model=MODEL, prompt=prompt, max_tokens=3, stream=True
        ) as stream:
            assert stream.headers["x-rope-factor-set"] == expected
            assert "data: [DONE]" in list(stream.iter_lines())


def test_wrong_models_raise_the_client_s_own_errors(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="unknown factor set 'nope'") as refused:
        client.chat.completions.create(model=f"{MODEL}@nope", messages=user("hi"))
    assert refused.value.param == "model"
    for ask in (
        lambda: client.chat.completions.create(model="other@long", messages=user("hi")),
        lambda: client.models.retrieve("none/such"),
    ):
        with pytest.raises(NotFoundError) as missing:
            ask()
        assert (missing.value.type, missing.value.code) == ("not_found_error", "model_not_found")
    assert [model.id for model in client.models.list()] == [MODEL]


def test_every_route_names_the_set_of_its_length(server: Server) -> None:
    chat = {"model": MODEL, "max_tokens": 3, "messages": user(LONG)}
    answer = {"model": MODEL, "input": LONG, "max_output_tokens": 16}
    tokens = {"model": MODEL, "token_ids": [5] * 300, "sampling_params": {"max_tokens": 3}}
    for path, body in (("/v1/chat/completions", chat), ("/v1/messages", chat), ("/inference/v1/generate", tokens)):
        assert server.post(path, body).sets == server.post(path, body | {"stream": True}).sets == "long"
    assert server.post("/v1/responses", answer).sets == "long"
    conversations = [user(SHORT), user(LONG)]
    assert server.post("/v1/chat/completions/batch", chat | {"messages": conversations}).sets == "short, long"
    beams = {"model": MODEL, "prompt": [SHORT, LONG], "max_tokens": 2, "n": 2, "use_beam_search": True}
    assert server.post("/v1/completions", beams).sets == "short, long"


def test_probes_and_the_page_need_no_prompt(server: Server) -> None:
    assert server.get("/").text == server.get("/ui").text
    for path in ("/health/live", "/health/ready"):
        assert server.send("HEAD", path).status == 200
