"""Pydantic's messages, written as messages about a flag."""

import argparse
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.config import CompilationConfig, KVTransferConfig, StructuredOutputsConfig

from ropeswitch.server.flags.plain import plain
from ropeswitch.server.refusals import _detail_text


@pytest.mark.parametrize(
    ("config", "text", "said", "detail"),
    [
        (CompilationConfig, '{"mode": 9}', "mode: 9 must be 0, 1, 2 or 3.", "--mode: 9: Input should be 0, 1, 2 or 3"),
        (
            StructuredOutputsConfig,
            '{"backend": "nope"}',
            "backend: 'nope' must be 'auto', 'xgrammar'",
            "--backend: 'nope': Input should be 'auto', 'xgrammar'",
        ),
        (
            KVTransferConfig,
            '{"kv_connector": "nope"}',
            "Please specify kv_role when kv_connector is set",
            "Please specify kv_role when kv_connector is set",
        ),
    ],
)
def test_errors_of_vllms_configs(config: Any, text: str, said: str, detail: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(config).validate_json(text)
    action = argparse.ArgumentParser().add_argument("--flag", "-f")
    message = plain(str(argparse.ArgumentError(action, repr(caught.value))))
    assert message.startswith(f"--flag: {said}") and "pydantic" not in message
    assert _detail_text(caught.value.errors()[0]).startswith(detail)


def test_other_messages_stay() -> None:
    assert plain("argument --port: invalid int value: 'x'") == "--port: invalid int value: 'x'"
    assert plain("unrecognized arguments: --x") == "unrecognized arguments: --x"
