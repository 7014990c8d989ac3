"""Pydantic's messages, written as messages about a flag."""

import argparse
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.config import CompilationConfig, KVTransferConfig, StructuredOutputsConfig

from ropeswitch.server.flags.plain import detail_text, plain


def errors_of(config: Any, text: str) -> tuple[str, list[str]]:
    """The message that vLLM's parser gives for a value, and the texts of its errors."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(config).validate_json(text)
    action = argparse.ArgumentParser().add_argument("--flag", "-f")
    return str(argparse.ArgumentError(action, repr(caught.value))), [
        detail_text(each) for each in caught.value.errors()
    ]


@pytest.mark.parametrize(
    ("config", "text", "expected"),
    [
        (CompilationConfig, '{"mode": 9}', "mode: 9: Input should be 0, 1, 2 or 3"),
        (StructuredOutputsConfig, '{"backend": "nope"}', "backend: 'nope': Input should be 'auto', 'xgrammar'"),
        (KVTransferConfig, '{"kv_connector": "nope"}', "Please specify kv_role when kv_connector is set"),
    ],
)
def test_errors_of_vllms_configs(config: Any, text: str, expected: str) -> None:
    message, details = errors_of(config, text)
    assert plain(message).startswith(f"--flag: {expected}") and "pydantic" not in plain(message)
    assert details[0].startswith(expected if expected.startswith("Please") else f"--{expected}")


def test_other_messages_stay() -> None:
    assert plain("argument --port: invalid int value: 'x'") == "--port: invalid int value: 'x'"
    assert plain("unrecognized arguments: --x") == "unrecognized arguments: --x"
