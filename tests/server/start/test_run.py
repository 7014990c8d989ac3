"""How a server's end becomes an exit code."""

import atexit
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.app.life_cycle import LIFE
from ropeswitch.server.start import refusals
from ropeswitch.server.start.run import run


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Runs a server that ends with an error, or a function, without a held log: the exit code, and what is printed."""
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    monkeypatch.setenv(refusals.VARIABLE, str(tmp_path / "refusal"))
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}

    def call(error: BaseException | None = None, serve: Callable[[], None] = lambda: None) -> tuple[int, list[str]]:
        printed: list[str] = []
        console: Any = SimpleNamespace(serving=True, catch_up=lambda: None, say=printed.append)

        def served(_: Any) -> None:
            serve()
            if error is not None:
                raise error

        return run(SimpleNamespace(serve=served), SimpleNamespace(), console), printed  # type: ignore[arg-type]

    yield call
    for each, handler in before.items():
        signal.signal(each, handler)


def test_a_stop_is_no_error_unless_the_engine_died(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(None) == (0, [])
    # Of several API servers the process that started them leaves so.
    assert outcome(SystemExit()) == (0, [])
    with pytest.raises(KeyboardInterrupt):
        outcome(KeyboardInterrupt())
    monkeypatch.setattr(LIFE, "died", True)
    assert outcome(None) == (1, ["error: the engine died; see the log above"])


@pytest.mark.parametrize("notices", [True, False], ids=["vllm notices", "vllm waits for the engine"])
def test_ctrl_c_ends_an_engine_that_starts_and_counts_for_more_than_the_error_that_follows(
    outcome: Any, monkeypatch: pytest.MonkeyPatch, notices: bool
) -> None:
    monkeypatch.setattr("ropeswitch.server.start.run.NOTICED", 60 if notices else 1)
    engine = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))

    def serve() -> None:
        engine.start()
        signal.raise_signal(signal.SIGINT)
        engine.join(60)
        time.sleep(0 if notices else 600)

    with pytest.raises(KeyboardInterrupt):
        outcome(RuntimeError("Engine core initialization failed"), serve)
    assert engine.exitcode == -signal.SIGKILL


def test_refusals_and_faults_are_the_caller_s(outcome: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="why"):
        outcome(UsageError("why"))
    with pytest.raises(SystemExit):
        outcome(SystemExit(3))

    def fail() -> None:
        raise ValueError("fault")

    # Its errors are refusals where they are about values.
    def create_engine_config() -> None:
        raise RuntimeError("fault")

    for serve, kind in ((fail, "ValueError"), (create_engine_config, "RuntimeError")):
        code, [failure] = outcome(serve=serve)
        assert code == 1 and failure.startswith(f"error: the server failed: {kind}: fault; ")
        assert capsys.readouterr().err.count("Traceback") == 1
