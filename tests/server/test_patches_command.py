"""``ropeswitch patches`` covers what the API server wraps, too: a server's start checks both."""

from typing import Any

import pytest

from ropeswitch.model_patches.guard.registry import for_this_device
from ropeswitch.server.cli import main
from ropeswitch.server.patches import SERVER_PATCHES

GENERATE = "vllm.v1.engine.async_llm.AsyncLLM.generate"


def test_list_has_the_patches_of_engines_and_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patches", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for record in for_this_device():
        assert f"| `{record.target}` | {record.kind} | {record.when} | `{record.file}` |" in lines
    for record in SERVER_PATCHES:
        assert f"| `{record.target}` | {record.kind} | API server | `{record.file}` |" in lines


def test_check_counts_every_symbol_once(capsys: pytest.CaptureFixture[str]) -> None:
    count = len({path for record in (*for_this_device(), *SERVER_PATCHES) for path in record.relies_on})
    assert main(["patches", "check"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{count} of {count} symbols are those of vLLM ")


def test_check_names_a_changed_symbol_of_the_server_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The method is another one, as in another release of vLLM; two patches count on it."""

    async def generate(self: Any, prompt: Any, params: Any) -> None: ...

    assert sum(GENERATE in record.relies_on for record in SERVER_PATCHES) == 2
    monkeypatch.setattr(GENERATE, generate)
    assert main(["patches", "check"]) == 1
    changed, summary = capsys.readouterr().out.splitlines()
    assert changed.startswith(f"{GENERATE}: recorded ")
    same, _, count = summary.split()[:3]
    assert int(same) == int(count) - 1
