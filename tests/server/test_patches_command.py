"""``ropeswitch patches`` covers what the API server wraps, too: a server's start checks both."""

import inspect
import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.engine import async_llm

from ropeswitch.model_patches.guard import cli
from ropeswitch.model_patches.guard.fingerprints import FILE, symbols
from ropeswitch.model_patches.guard.registry import for_this_device
from ropeswitch.server.cli import main
from ropeswitch.server.patches import SERVER_PATCHES

GENERATE = "vllm.v1.engine.async_llm.AsyncLLM.generate"
HASHER = "vllm.v1.core.kv_cache_utils.get_request_block_hasher"
BUILDER = "vllm.model_executor.model_loader.base_loader.initialize_model"
RECORD = "vllm.v1.engine.output_processor.OutputProcessor.do_tracing"
TEXT = "vllm.entrypoints.launchers.launcher.setup_server"


def test_list_has_the_patches_of_engines_and_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patches", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for record in for_this_device():
        assert f"| `{record.target}` | {record.kind} | {record.when} | `{record.file}` | `{record.tests}` |" in lines
    for record in SERVER_PATCHES:
        assert f"| `{record.target}` | {record.kind} | API server | `{record.file}` | `{record.tests}` |" in lines


def test_check_counts_every_symbol_once(capsys: pytest.CaptureFixture[str]) -> None:
    count = len(symbols((*for_this_device(), *SERVER_PATCHES)))
    assert main(["patches", "check"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{count} of {count} symbols are those of vLLM ")


def test_check_names_a_changed_symbol_of_the_server_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The method is another one, as in another release of vLLM; two patches count on it."""

    async def generate(self: Any, prompt: Any, params: Any) -> None: ...

    assert sum(GENERATE in record.relies_on for record in SERVER_PATCHES) == 2
    # A test in this process may have put our class under upstream's name.
    monkeypatch.setattr(inspect.unwrap(async_llm.AsyncLLM), "generate", generate)
    assert main(["patches", "check"]) == 1
    changed, summary = capsys.readouterr().out.splitlines()
    assert changed.startswith(f"{GENERATE}: fingerprint ")
    assert changed.endswith(" (server/app/engine_client.py, server/metrics/outputs.py)")
    same, _, count = summary.split()[:3]
    assert int(same) == int(count) - 1


def test_check_names_every_symbol_that_is_missing_and_its_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Functions that patches rely on, one of a target alone, and one with a text that the server matches."""
    files = {
        HASHER: "model_patches/switch/engine/process_inputs.py",
        RECORD: "server/metrics/outputs.py",
        BUILDER: "model_patches/switch/engine/initialize_model.py",
        TEXT: "server/start/refusals.py",
    }
    for path in files:
        monkeypatch.delattr(path)
    assert main(["patches", "check"]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"{path}: not found in the installed vLLM ({files[path]})" for path in files)
    same, _, count = summary.split()[:3]
    assert int(same) == int(count) - 2


def test_check_goes_on_past_what_is_no_function_any_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A function that became a compiled one, and a text of a symbol without source."""
    monkeypatch.setattr(HASHER, len)
    monkeypatch.setattr(TEXT, 3)
    assert main(["patches", "check"]) == 1
    *lines, _ = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in sorted(lines)] == sorted([HASHER, TEXT])


def test_commands_without_vllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    for words in (["check"], ["record"], ["record", "--other-version"]):
        assert main(["patches", *words]) == 2
        assert capsys.readouterr().err == "ropeswitch: error: no vLLM is installed; this release is for vLLM 0.32.0\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the file of fingerprints, which `record` writes instead."""
    copy = tmp_path / FILE.name
    copy.write_bytes(FILE.read_bytes())
    monkeypatch.setattr(cli, "FILE", copy)
    return copy


def test_record_writes_what_is_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong, an unused and a missing fingerprint are corrected, and each is reported; the others stay."""
    right = file.read_text()
    values = json.loads(right)
    missing = next(path for path in sorted(values) if path != GENERATE)
    was = values.pop(missing)
    generate, values[GENERATE], values["vllm.unused"] = values[GENERATE], "0" * 16, "1" * 16
    file.write_text(json.dumps(values))
    assert main(["patches", "record"]) == 0
    assert file.read_text() == right
    *changes, last = capsys.readouterr().out.splitlines()
    assert sorted(changes) == sorted(
        [
            f"{missing}: not recorded -> {was}",
            f"{GENERATE}: {'0' * 16} -> {generate}",
            f"vllm.unused: {'1' * 16} -> no longer relied on",
        ]
    )
    assert last == f"recorded {len(json.loads(right))} symbols in {file}"


def test_record_writes_all_or_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_bytes()
    monkeypatch.delattr(HASHER)
    assert main(["patches", "record"]) == 2
    assert f"nothing recorded: {HASHER}: not found in the installed vLLM" in capsys.readouterr().err
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]


def test_record_refuses_another_version_unless_asked(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_bytes()
    monkeypatch.setattr(cli, "_installed", lambda: ("vllm", "0.33.0+cpu"))
    assert main(["patches", "record"]) == 2
    assert "the installed vLLM is 0.33.0, but this release is for 0.32.0" in capsys.readouterr().err
    assert main(["patches", "record", "--other-version"]) == 0
    assert file.read_bytes() == before
    assert file.with_name("0.33.0.json").read_bytes() == before  # its symbols are those that are installed
