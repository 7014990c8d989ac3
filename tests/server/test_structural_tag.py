"""White space in tool calls is bounded, as the real grammar compiler sees it; everything else in a tag stays."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import xgrammar
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from ropeswitch.server.app.engine_client import Prompts
from tests.server.placing import engine_ladder
from tests.server.test_context import LADDER

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
JSON = {"type": "json_schema", "json_schema": SCHEMA, "max_whitespace_cnt": None}
CALL = {"type": "tag", "begin": "<tool_call>", "content": JSON, "end": "</tool_call>"}
TAG = {"type": "structural_tag", "format": {"type": "sequence", "elements": [CALL]}}
FREE = '<tool_call>{\n\n\n"city": "Oslo"}</tool_call>'
PLAIN = '<tool_call>{"city": "Oslo"}</tool_call>'


def sent(tag: str, *, bounds_whitespace: bool = True) -> str:
    """The tag that the engine gets for one that a handler made."""
    admission: Any = SimpleNamespace(admit=lambda *_: None)
    prompts = Prompts(engine_ladder(LADDER), admission, len, bounds_whitespace=bounds_whitespace)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(structural_tag=tag))
    outputs = prompts.place([1], params, "r").structured_outputs
    assert isinstance(outputs.structural_tag, str)
    return outputs.structural_tag


def takes(tag: str, text: str) -> bool:
    vocabulary = [chr(code) for code in range(128)]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[0]))
    matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(tag))
    return bool(matcher.accept_string(text))


@pytest.mark.parametrize("bounded", [True, False])
def test_free_white_space_in_a_call_is_forbidden_where_it_is_in_json(bounded: bool) -> None:
    tag = sent(json.dumps(TAG), bounds_whitespace=bounded)
    assert takes(tag, PLAIN)
    assert takes(tag, FREE) != bounded


# The schema has a property that looks like a format.
PROPERTY = {"type": "object", "properties": {"type": {"const": "json_schema"}}}
BOUNDED = {"type": "json_schema", "json_schema": PROPERTY, "max_whitespace_cnt": 7}


@pytest.mark.parametrize(
    "tag", [json.dumps({"type": "structural_tag", "format": BOUNDED}), "{", '"text"', "[" * 100_000 + "]" * 100_000]
)
def test_a_bound_of_the_tag_and_the_schema_stay_and_what_is_no_tag_is_left_to_vllm(tag: str) -> None:
    assert sent(tag) == tag
