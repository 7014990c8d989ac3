"""What upstream's OpenAI API offers works through the patched engine, with the factor set named on each response."""

import json
from typing import Any

from openai import OpenAI

from tests.server.conftest import MODEL
from tests.server.running import Server

SHORT = "a" * 20
LONG = "b" * 300
HEADER = "x-rope-factor-set"
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}


def test_completion_names_the_set_of_its_prompt(client: OpenAI) -> None:
    for prompt, expected in ((SHORT, "short"), (LONG, "long")):
        response = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=4)
        assert response.headers[HEADER] == expected
        completion = response.parse()
        assert completion.usage is not None
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len(prompt), 4)


def test_the_limit_itself_is_short_and_one_past_it_long(client: OpenAI) -> None:
    prompts = [[5] * 256, [5] * 257]
    response = client.completions.with_raw_response.create(model=MODEL, prompt=prompts, max_tokens=1)
    assert response.headers[HEADER] == "short, long"


def test_list_of_prompts_names_every_set_in_order(client: OpenAI) -> None:
    prompts = [SHORT, LONG, SHORT]
    response = client.completions.with_raw_response.create(model=MODEL, prompt=prompts, max_tokens=3)
    assert response.headers[HEADER] == "short, long, short"
    assert [choice.index for choice in response.parse().choices] == [0, 1, 2]


def test_stream_has_the_header_before_its_body(client: OpenAI) -> None:
    with client.completions.with_streaming_response.create(
        model=MODEL, prompt=[LONG, SHORT], max_tokens=3, stream=True
    ) as response:
        assert response.headers[HEADER] == "long, short"
        assert "data: [DONE]" in list(response.iter_lines())


def test_greedy_stream_and_completion_agree_across_the_switch(client: OpenAI) -> None:
    prompt = [7 + i % 90 for i in range(250)]
    whole = client.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0)
    stream = client.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0, stream=True)
    assert "".join(event.choices[0].text for event in stream) == whole.choices[0].text


def test_chat_and_its_stream(client: OpenAI) -> None:
    for content, expected in (("hi", "short"), (LONG, "long")):
        messages = [{"role": "user", "content": content}]
        # A random model may end its answer at any token.
        ends: Any = {"max_tokens": 4, "extra_body": {"ignore_eos": True}}
        response = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, **ends)
        assert response.headers[HEADER] == expected
        assert response.parse().choices[0].finish_reason == "length"
        with client.chat.completions.with_streaming_response.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}, **ends
        ) as stream:
            assert stream.headers[HEADER] == expected
            lines = [line for line in stream.iter_lines() if line.startswith("data: {")]
        assert json.loads(lines[-1].removeprefix("data: "))["usage"]["completion_tokens"] == 4


def test_logprobs_and_echo(client: OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt=SHORT, max_tokens=3, logprobs=2, echo=True)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    assert completion.choices[0].text.startswith(SHORT)
    assert len(logprobs.token_logprobs) == len(SHORT) + 3
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])
    messages = [{"role": "user", "content": "hi"}]
    chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3, logprobs=True, top_logprobs=2)
    content = chat.choices[0].logprobs
    assert content is not None and content.content is not None and len(content.content) == 3


def test_several_choices_are_one_prompt(client: OpenAI) -> None:
    response = client.completions.with_raw_response.create(model=MODEL, prompt=SHORT, max_tokens=3, n=3)
    assert response.headers[HEADER] == "short"
    assert len(response.parse().choices) == 3


def test_structured_output(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "h" * 240}],
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}},
    )
    assert json.loads(chat.choices[0].message.content or "")["city"] in ("Oslo", "Rome")


def test_named_tool(client: OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=200,
    )
    calls = chat.choices[0].message.tool_calls
    assert calls and calls[0].function.name == "weather"
    assert json.loads(calls[0].function.arguments)["city"] in ("Oslo", "Rome")


def test_responses_and_their_stream(client: OpenAI) -> None:
    for text, expected in (("hi", "short"), (LONG, "long")):
        response = client.responses.with_raw_response.create(model=MODEL, input=text, max_output_tokens=16)
        assert response.headers[HEADER] == expected
        with client.responses.with_streaming_response.create(
            model=MODEL, input=text, max_output_tokens=16, stream=True
        ) as stream:
            assert HEADER not in stream.headers
            assert any("response.completed" in line or "incomplete" in line for line in stream.iter_lines())


def test_other_prompt_routes(server: Server) -> None:
    chat = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": LONG}]}
    assert server.post("/v1/messages", chat).sets == "long"
    assert server.post("/v1/messages", chat | {"stream": True}).sets == "long"
    conversations = [[{"role": "user", "content": text}] for text in (SHORT, LONG)]
    assert server.post("/v1/chat/completions/batch", chat | {"messages": conversations}).sets == "short, long"
    tokens = {"model": MODEL, "token_ids": [5] * 300, "sampling_params": {"max_tokens": 3}}
    assert server.post("/inference/v1/generate", tokens).sets == "long"
    assert server.post("/inference/v1/generate", tokens | {"stream": True}).sets == "long"
    beams = {"model": MODEL, "prompt": [SHORT, LONG], "max_tokens": 2, "n": 2, "use_beam_search": True}
    assert server.post("/v1/completions", beams).sets == "short, long"


def test_routes_without_prompts(server: Server, client: OpenAI) -> None:
    assert server.get("/health").status == 200
    assert [model.id for model in client.models.list()] == [MODEL]
    tokens = server.post("/tokenize", {"model": MODEL, "prompt": SHORT})
    assert tokens.json["count"] == len(SHORT) and tokens.sets is None
    metrics = server.get("/metrics")
    assert "vllm:generation_tokens_total" in metrics.text
