"""What the API server relies on in vLLM: a start and ``ropeswitch patches`` check the symbols, a test here the texts."""

import asyncio
import inspect
import json
import re
from argparse import Namespace
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import State
from vllm.v1.engine import async_llm

from ropeswitch.model_patches.guard import cli, fingerprints, registry
from ropeswitch.model_patches.guard.fingerprints import FOLDER, RegistryError, resolve, symbols
from ropeswitch.model_patches.guard.records import PATCHES
from ropeswitch.model_patches.guard.registry import for_this_device
from ropeswitch.model_patches.switch import releases
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.releases import installed, release, unverified
from ropeswitch.model_patches.switch.set_keys import ladder_digest
from ropeswitch.server.app.endpoint_plugin import RopeSwitchEndpoints
from ropeswitch.server.app.engine_utilities import check_reports
from ropeswitch.server.cli import main
from ropeswitch.server.patches import SERVER_PATCHES
from ropeswitch.server.start import refusals
from tests.passkey_tiny import SERVED
from tests.server import running as servers
from tests.server.front.parts import LADDER

GENERATE = "vllm.v1.engine.async_llm.AsyncLLM.generate"
HASHER = "vllm.v1.core.kv_cache_utils.get_request_block_hasher"
RECORD = "vllm.v1.engine.output_processor.OutputProcessor.propagate_error"
WORKER, ENGINE = "vllm.v1.executor.multiproc_executor.WorkerProc", "vllm.v1.engine"
TOO_LONG, TOKENS = "This model's maximum context length is ", "vllm.renderers.params.TokenizeParams"
# Texts that the server matches, separated by |, by the function in whose source they are.
TEXTS = {
    # Errors with the code `context_length_exceeded` (server/front/refusal.py).
    f"{TOKENS}._text_len_check": TOO_LONG,
    f"{TOKENS}._token_len_check": TOO_LONG,
    f"{TOKENS}.__post_init__": "cannot be greater than ",
    f"{ENGINE}.input_processor.InputProcessor._validate_prompt_len": "longer than the maximum model length of ",
    # Logs and errors of a failed start, and functions in its traceback (server/start/refusals.py).
    f"{ENGINE}.core.EngineCoreProc.run_engine_core": 'logger.exception("EngineCore failed to start.")',
    f"{ENGINE}.utils.wait_for_engine_startup": "Engine core initialization failed. |{finished}",
    f"{WORKER}.worker_main": 'logger.exception("WorkerProc failed to start.")',
    f"{WORKER}._execute_worker_rpc": 'logger.exception("WorkerProc hit an exception.")',
    **dict.fromkeys(
        (
            "vllm.engine.arg_utils.EngineArgs.create_engine_config",
            "vllm.entrypoints.launchers.launcher.setup_server",
            *(f"vllm.v1.core.kv_cache_planning.{name}" for name in sorted(refusals.INPUT_CHECKS) if name[0] == "_"),
        ),
        "def ",
    ),
}

Captured = pytest.CaptureFixture[str]


def change_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the method another one, as in another release of vLLM."""

    async def generate(self: Any, prompt: Any, params: Any) -> None: ...

    # A test in this process may have put our class under upstream's name.
    monkeypatch.setattr(inspect.unwrap(async_llm.AsyncLLM), "generate", generate)


def test_check_names_every_symbol_that_changed_or_is_missing_and_its_files(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Functions that patches rely on, one of which became a compiled one."""
    count = len(symbols((*for_this_device(), *SERVER_PATCHES)))
    assert main(["patches", "check"]) == 0
    assert capsys.readouterr().out.startswith(f"{count} of {count} symbols are those of vLLM ")
    change_generate(monkeypatch)
    monkeypatch.delattr(RECORD)
    monkeypatch.setattr(HASHER, len)
    assert main(["patches", "check"]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(": ")[0] for line in lines) == sorted([GENERATE, HASHER, RECORD])
    assert summary.startswith(f"{count - 3} of {count} ")
    assert f"{RECORD}: not found in the installed vLLM (server/metrics/outputs.py)" in lines
    # Two patches count on it.
    [changed] = [line for line in lines if line.startswith(f"{GENERATE}: fingerprint ")]
    assert changed.endswith(" (server/app/engine_client.py, server/metrics/outputs.py)")


@pytest.mark.parametrize("path", TEXTS)
def test_texts_that_the_server_matches_are_vllms(path: str) -> None:
    """One that changed costs a code or the reason of a failed start, so it stops no start."""
    source = inspect.getsource(inspect.unwrap(resolve(path)[2]))
    assert [text for text in TEXTS[path].split("|") if text not in source] == []


def test_a_server_with_another_upstream_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    change_generate(monkeypatch)
    monkeypatch.delattr(RECORD)
    with refusals.channel():
        with pytest.raises(SystemExit) as left:
            asyncio.run(RopeSwitchEndpoints().init_state(None, State(), Namespace(ropeswitch_front=None)))
        assert left.value.code == 2
        reported = refusals.reported() or ""
        assert reported.startswith(f"{GENERATE}: fingerprint") and " and 1 more difference" in reported


def test_commands_without_vllm(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    for command in ("check", "record"):
        assert main(["patches", command]) == 2
        assert (
            capsys.readouterr().err
            == "ropeswitch: error: no vLLM is installed; this works with vLLM 0.32.0 and 0.33.0\n"
        )


def test_record_writes_what_is_there_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    file = tmp_path / f"{release()}.json"
    right = (FOLDER / file.name).read_text()
    for module in (cli, fingerprints):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    values = json.loads(right)
    missing = next(path for path in sorted(values) if path != GENERATE)
    was = values.pop(missing)
    generate, values[GENERATE], values["vllm.unused"] = values[GENERATE], "0" * 16, "1" * 16
    file.write_text(json.dumps(values))
    with monkeypatch.context() as without:
        without.delattr(HASHER)
        assert main(["patches", "record"]) == 2
        assert f"nothing recorded: {HASHER}: not found in the installed vLLM" in capsys.readouterr().err
        assert json.loads(file.read_text()) == values and list(tmp_path.iterdir()) == [file]
    assert main(["patches", "record"]) == 0
    assert file.read_text() == right
    expected = [f"{missing}: not recorded -> {was}", f"{GENERATE}: {'0' * 16} -> {generate}"]
    expected.append(f"vllm.unused: {'1' * 16} -> no longer relied on")
    assert sorted(capsys.readouterr().out.splitlines()[:-1]) == sorted(expected)
    # Another version's, only once releases.py names it.
    monkeypatch.setattr(cli, "installed", lambda: ("vllm", "0.34.0"))
    assert main(["patches", "record"]) == 2
    assert file.read_text() == right and not file.with_name("0.34.0.json").exists()


@pytest.mark.parametrize(
    ("package", "files", "says"),
    [
        ("0.34.0", "0.34.0", "0.34.0: this works with vLLM 0.32.0 and 0.33.0; install one"),
        ("0.32.0", "0.31.0", "is 0.32.0, but its Python files are of 0.31.0"),
    ],
)
def test_another_release_does_not_start(monkeypatch: pytest.MonkeyPatch, package: str, files: str, says: str) -> None:
    monkeypatch.setattr(registry, "installed", lambda: (installed()[0], package))
    monkeypatch.setattr("vllm.__version__", files)
    with pytest.raises(RegistryError, match=re.escape(says)):
        registry.require(())


def test_another_release_is_tried_where_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions may differ; those that the patches name must be there."""
    assert not unverified()
    for module in (registry, releases):
        monkeypatch.setattr(module, "installed", lambda: ("vllm", "0.34.0"))
    monkeypatch.setattr("vllm.__version__", "0.34.0")
    change_generate(monkeypatch)
    with pytest.raises(RegistryError, match="start it with --unverified-vllm"):
        registry.require(SERVER_PATCHES)
    monkeypatch.setenv(releases.UNVERIFIED, "1")
    assert unverified()
    registry.require(SERVER_PATCHES)
    monkeypatch.delattr(HASHER)
    with pytest.raises(RegistryError, match=HASHER):
        registry.require(PATCHES)


NEWER = """
import importlib.metadata
import vllm
from ropeswitch.model_patches.switch.releases import installed, release
(name, _), _, version = installed(), release(), importlib.metadata.version
importlib.metadata.version = lambda of: "0.34.0" if of == name else version(of)
vllm.__version__ = "0.34.0"
"""


@pytest.mark.full
def test_a_server_on_it_says_so_in_log_metrics_and_ladder(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NEWER)
    flags = [*SERVED, *servers.ENGINE, "--unverified-vllm"]
    with servers.running(tmp_path, *flags, variables={"PYTHONPATH": str(tmp_path)}) as server:
        assert server.get("/v1/rope").json["vllm_verified"] is False
        assert re.search(r"^ropeswitch_unverified_vllm\{.*\} 1.0$", server.get("/metrics").text, re.MULTILINE)
        assert "vLLM 0.34.0 has no recorded fingerprints: run `ropeswitch verify`" in server.log.read_text()


def test_every_worker_must_have_the_servers_ladder() -> None:
    settings = RopeSettings(LADDER, 1e4)
    right, other = ladder_digest(settings), ladder_digest(replace(settings, theta=2e4))
    check_reports([(0, right), (1, right)], settings)
    for reports, expected in (([], "no worker"), ([(0, right), (1, other)], "worker 1 rotates by another ladder")):
        with pytest.raises(UnsupportedError, match=expected):
            check_reports(reports, settings)
