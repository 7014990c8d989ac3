"""What the API server relies on in vLLM: a start and ``ropeswitch patches`` check it all, by symbol and by text."""

import ast
import asyncio
import inspect
import json
import re
import textwrap
from argparse import Namespace
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import State
from vllm.v1.engine import async_llm

from ropeswitch.model_patches.guard import cli, registry
from ropeswitch.model_patches.guard.fingerprints import FILE, Reading, RegistryError, resolve, symbols
from ropeswitch.model_patches.guard.records import CLIENTS, PATCHES
from ropeswitch.model_patches.guard.registry import for_this_device
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.engine import patching
from ropeswitch.server.app import engine_utilities
from ropeswitch.server.app.endpoint_plugin import RopeSwitchEndpoints
from ropeswitch.server.app.engine_client import RopeClient, use_our_classes
from ropeswitch.server.app.engine_utilities import check_process, check_reports
from ropeswitch.server.cli import main
from ropeswitch.server.front import refusal
from ropeswitch.server.patches import SERVER_PATCHES, UPSTREAM_TEXTS
from ropeswitch.server.start import refusals
from tests.server.front.parts import LADDER

GENERATE = "vllm.v1.engine.async_llm.AsyncLLM.generate"
HASHER = "vllm.v1.core.kv_cache_utils.get_request_block_hasher"
BUILDER = "vllm.model_executor.model_loader.base_loader.initialize_model"
RECORD = "vllm.v1.engine.output_processor.OutputProcessor.do_tracing"
TEXT = "vllm.entrypoints.launchers.launcher.setup_server"

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def another_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method is another one, as in another release of vLLM."""

    async def generate(self: Any, prompt: Any, params: Any) -> None: ...

    # A test in this process may have put our class under upstream's name.
    monkeypatch.setattr(inspect.unwrap(async_llm.AsyncLLM), "generate", generate)


def checked(capsys: Captured) -> tuple[list[str], int, int]:
    """The lines of ``patches check``, with how many symbols are the same and of how many, for a check that fails."""
    assert main(["patches", "check"]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    same, _, count = summary.split()[:3]
    return sorted(lines), int(same), int(count)


def test_list_and_check_have_the_patches_of_engines_and_of_the_server(capsys: Captured) -> None:
    assert main(["patches", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for record in (*for_this_device(), *SERVER_PATCHES):
        when = "API server" if record in SERVER_PATCHES else record.when
        assert f"| `{record.target}` | {record.kind} | {when} | `{record.file}` | `{record.tests}` |" in lines
    count = len(symbols((*for_this_device(), *SERVER_PATCHES)))
    assert main(["patches", "check"]) == 0
    assert capsys.readouterr().out.startswith(f"{count} of {count} symbols are those of vLLM ")


def test_a_process_that_takes_our_classes_twice_still_finds_upstream_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patching, "_done", set())
    upstream = inspect.unwrap(async_llm.AsyncLLM)
    for name in ("AsyncLLM", "OutputProcessor"):
        monkeypatch.setattr(async_llm, name, inspect.unwrap(getattr(async_llm, name)))
    for _ in range(2):
        use_our_classes()
    assert async_llm.AsyncLLM is RopeClient and inspect.unwrap(async_llm.AsyncLLM) is upstream


@pytest.mark.usefixtures("another_generate")
def test_check_names_a_changed_symbol_of_the_server_once(capsys: Captured) -> None:
    """Two patches count on it."""
    [changed], same, count = checked(capsys)
    assert changed.startswith(f"{GENERATE}: fingerprint ")
    assert changed.endswith(" (server/app/engine_client.py, server/metrics/outputs.py)") and same == count - 1


@pytest.mark.usefixtures("another_generate")
def test_a_server_with_another_upstream_does_not_start() -> None:
    with refusals.channel():
        with pytest.raises(SystemExit) as left:
            asyncio.run(RopeSwitchEndpoints().init_state(None, State(), Namespace(ropeswitch_front=None)))
        assert left.value.code == 2
        assert (refusals.reported() or "").startswith(f"{GENERATE}: fingerprint")


def test_check_names_every_symbol_that_is_missing_and_its_files(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
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
    lines, same, count = checked(capsys)
    assert lines == sorted(f"{path}: not found in the installed vLLM ({files[path]})" for path in files)
    assert same == count - 2


def test_check_goes_on_past_what_is_no_function_any_more(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """A function that became a compiled one, and a text of a symbol without source."""
    monkeypatch.setattr(HASHER, len)
    monkeypatch.setattr(TEXT, 3)
    assert [line.partition(": ")[0] for line in checked(capsys)[0]] == sorted([HASHER, TEXT])


def test_commands_without_vllm(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
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


def test_record_writes_what_is_there(file: Path, capsys: Captured) -> None:
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
    expected = [f"{missing}: not recorded -> {was}", f"{GENERATE}: {'0' * 16} -> {generate}"]
    assert sorted(changes) == sorted([*expected, f"vllm.unused: {'1' * 16} -> no longer relied on"])
    assert last == f"recorded {len(json.loads(right))} symbols in {file}"


def test_record_writes_all_or_nothing(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    before = file.read_bytes()
    with monkeypatch.context() as without:
        without.delattr(HASHER)
        assert main(["patches", "record"]) == 2
        assert f"nothing recorded: {HASHER}: not found in the installed vLLM" in capsys.readouterr().err
        assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]
    # Another version's, unless asked for.
    monkeypatch.setattr(cli, "_installed", lambda: ("vllm", "0.33.0+cpu"))
    assert main(["patches", "record"]) == 2
    assert "the installed vLLM is 0.33.0, but this release is for 0.32.0" in capsys.readouterr().err
    assert main(["patches", "record", "--other-version"]) == 0
    assert file.read_bytes() == before
    assert file.with_name("0.33.0.json").read_bytes() == before  # its symbols are those that are installed


def messages(file: str) -> Iterator[str]:
    """The strings in the functions that a file of ours reads, with a 7 for every value in them but names."""
    for reading in (each for each in UPSTREAM_TEXTS if each.file == file):
        source = textwrap.dedent(inspect.getsource(resolve(reading.symbol)[2]))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.JoinedStr):
                yield "".join(map(rendered, node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def rendered(part: ast.expr) -> str:
    """A part of an f-string as it may read in a message."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    if "_param" in (name := ast.unparse(part)):
        return "max_model_len"
    return "decoder" if "prompt_type" in name else "7"


def test_every_pattern_fits_a_message_of_the_installed_vllm() -> None:
    found = list(messages("server/front/refusal.py"))
    for pattern in refusal._TOO_LONG.pattern.split("|"):
        assert any(re.match(pattern, message) for message in found), pattern
    readings = [each.symbol for each in UPSTREAM_TEXTS if each.file == "server/start/refusals.py"]
    assert {each.rsplit(".", 1)[1] for each in readings} >= {*refusals.INPUT_CHECKS, refusals.SERVER_CHECK}
    assert all(any(path.startswith(f"{name}.") for path in readings) for name in refusals.LOGGERS)


def test_a_symbol_or_text_that_is_gone_stops_the_start(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    registry.require(SERVER_PATCHES, UPSTREAM_TEXTS)
    gone = Reading("server/start/refusals.py", "vllm.exceptions.QueueOverflowError", ("is currently idle",))
    with pytest.raises(RegistryError, match=r"QueueOverflowError: its source no longer holds 'is currently idle'"):
        registry.require((), (gone,))

    def make_socket() -> None: ...

    # The function has another name, as in another release of vLLM.
    monkeypatch.setattr(TEXT, make_socket)
    assert checked(capsys)[0] == [
        f"{TEXT}: its source no longer holds 'def setup_server(', which server/start/refusals.py matches"
    ]


def report(**changes: Any) -> dict[str, Any]:
    return {"rank": 0, "patches": [patch.target for patch in PATCHES], "sets": [*LADDER.names]} | changes


def test_every_worker_and_api_server_must_be_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    check_reports([report(), report(rank=1)], LADDER, PATCHES)
    for reports, expected in (
        ([], "no worker"),
        ([report(), report(rank=1, patches=[])], "worker 1 runs without"),
        ([report(rank=2, sets=["short"])], "worker 2 rotates"),
    ):
        with pytest.raises(UnsupportedError, match=expected):
            check_reports(reports, LADDER, PATCHES)
    [target] = {patch.target for patch in PATCHES if patch.when == CLIENTS}
    monkeypatch.setattr(engine_utilities, "applied", lambda: [target])
    check_process(PATCHES)
    monkeypatch.setattr(engine_utilities, "applied", lambda: [])
    with pytest.raises(UnsupportedError, match=f"the API server runs without the patch of {target}"):
        check_process(PATCHES)
