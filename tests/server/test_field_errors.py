"""Long lists and objects are checked up to their first wrong item, and nothing is refused that upstream accepts."""

from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest

from ropeswitch.server.error_sentences import describe
from ropeswitch.server.field_errors import wrong_items


class Tool(BaseModel):
    name: str


class Chat(BaseModel):
    messages: list[dict[str, Any]]


class Mapped(BaseModel):
    bias: Annotated[dict[str, int] | None, "a comment"] = None
    tool: Tool | None = None

    model_config = {"extra": "allow"}


def test_of_many_wrong_values_of_an_object_the_first_is_named() -> None:
    many = {str(number): 1 for number in range(5000)}
    (error,) = wrong_items([Mapped], {"bias": many | {"4000": "x", "4001": "y"}})
    assert error["loc"] == ("bias", "4000")
    assert not wrong_items([Mapped], {"bias": many})
    # A part of a model is no such model.
    assert not wrong_items([Mapped], {"tool": many | {"name": "a"}})


def test_a_long_first_item_is_not_validated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr("ropeswitch.server.field_errors.errors_of", lambda adapter, value, loc: seen.append(len(value)))
    assert not wrong_items([Chat], {"messages": [{"role": "user"}] * 100})
    assert sum(seen) == 100


def message(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def message_of(found: Any, body: Any) -> str:
    return describe([each | {"loc": ("body", *each["loc"])} for each in found], body)[0]


def history(count: int) -> list[dict[str, Any]]:
    """As the Agents SDK replays it: vLLM adds what assistants' messages and reasoning lack."""
    turn = [
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]
    return turn * count


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({203: {"role": "usr", "content": "a"}}, 'input[203].role: "usr" must be '),
        ({203: {"role": "usr"}, 400: 5}, "input[203]"),
    ],
)
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_what_upstream_completes_in_a_long_input_is_right(
    changed: dict[int, Any], said: str | None, choice: str
) -> None:
    items = [changed.get(index, item) for index, item in enumerate(history(100))]
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": False}
    body = {"model": "m", "input": items, "tools": [tool], "tool_choice": choice}
    found = wrong_items([ResponsesRequest], body)
    if said is None:
        assert found == []
        ResponsesRequest.model_validate(body)
    else:
        assert message_of(found, body).startswith(said)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"role": "tool", "content": "a", "tool_call_id": 5}, "messages[40].tool_call_id: 5 "),
        ({"role": "user", "content": 5}, "messages[40].content: 5 "),
    ],
)
def test_a_wrong_message_after_many(wrong: Any, said: str) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [message("a")] * 40 + [wrong], "tools": [tool], "tool_choice": "auto"}
    assert message_of(wrong_items([ChatCompletionRequest], body), body).startswith(said)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([[1, 2]] * 20 + ["x"], 'prompt[20]: "x" must be a list.'),
        (["a"] * 20 + [5], "prompt[20]: 5 must be a string."),
        ([[1, 2]] * 17 + [[1, "x"]], 'prompt[17][1]: "x" must be a whole number.'),
        ([5] * 5000 + ["x"], 'prompt[5000]: "x" must be a whole number.'),
        (["a"] * 20, None),
        ([[1, 2]] * 20, None),
    ],
)
def test_a_wrong_prompt_after_many(prompt: Any, said: str | None) -> None:
    body = {"prompt": prompt, "bad_words": ["a"]}
    found = wrong_items([CompletionRequest], body)
    assert (message_of(found, body) if found else None) == said
    found = wrong_items([CompletionRequest], {"prompt": prompt[:1], "bad_words": ["a"] * 20 + [{}]})
    assert [each["loc"][:1] + each["loc"][-1:] for each in found] == [("bad_words", 20)]


@pytest.mark.parametrize("other", [{"tools": 5}, {"tools": 5, "tool_choice": "auto"}, {"truncation": []}])
def test_a_body_that_upstream_crashes_on_is_checked_up_to_the_first_wrong_item(other: dict[str, Any]) -> None:
    found = wrong_items([ResponsesRequest], {"model": "m", "input": [{}] * 1000} | other)
    assert 0 < len(found) < 300
    assert not wrong_items([ResponsesRequest], {"model": "m", "input": [message("a")] * 1000} | other)


def test_a_field_that_another_model_ignores_may_hold_anything() -> None:
    models = get_args(get_args(EmbeddingRequest)[0])
    texts = {"input": ["a"] * 20 + [1]}
    assert wrong_items(models, texts)
    assert not wrong_items(models, texts | {"messages": [message("a")]})
    # As `/invocations` chooses from. A completion needs none of its fields alone, and fits no body of messages.
    assert wrong_items([CompletionRequest, ChatCompletionRequest], {"messages": [1] * 1000})
