"""What a user sees of a start and of vLLM's log, in processes of their own: the console takes their standard error away."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PRELUDE = """\
import os, subprocess, sys, time
from pathlib import Path
from contextlib import closing
from ropeswitch.server.start.log import console, held_log
from ropeswitch.server.start.log.console import SECONDS, Console
from ropeswitch.server.start.log.held_log import HeldLog

def opened():
    return closing(Console("versions", "first stage"))

def wait(seen):
    for _ in range(2000):
        if seen():
            return
        time.sleep(0.01)
    raise AssertionError

def logged(level, text):
    return f"(EngineCore pid=1) {level} 11-23 20:13:22 [a.py:1] {text}\\n"

def ready(console, folder, text):
    Path(folder, "ready").write_text(text)
    console.ready = Path(folder, "ready")
    wait(lambda: console.serving)

def child(text):
    subprocess.run([sys.executable, "-c", f"import os; os.write(2, {text.encode()!r})"], check=True)
"""


def run(script: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_vllms_log_is_held_until_ready_and_then_its_errors_are_shown(tmp_path: Path) -> None:
    done = run(f"""
        with opened() as console:
            path = console.path
            os.write(2, b"noise of C++\\n")
            print("for standard output")
            sys.stderr.write("noise of Python\\n")
            child(logged("INFO", "quiet") + logged("WARNING", "slow disk"))
            wait(lambda: console._lines.last == "slow disk")
            ready(console, {str(tmp_path)!r}, "http://here; a first request:\\ncurl http://here\\n")
            child("INFO:     request\\n" + logged("INFO", "throughput") + logged("ERROR", "fault") + "Traceback\\n")
            held = Path(path).read_text()
            # A log that has grown is emptied, also where a cleanup of temporary files removed its name.
            held_log.MOST_BYTES = 10
            os.unlink(path)
            wait(lambda: os.fstat(2).st_size == 0)
            os.write(2, b"unfinished")
        assert "noise of C++" in held and "quiet" in held and "noise of Python" in held
        print("after", file=sys.stderr)
    """)
    assert done.stdout == "for standard output\n"
    first, ready, curl, *rest = done.stderr.splitlines()
    assert first.startswith("ropeswitch: versions: first stage; vLLM's log: /")
    assert ready.startswith("ropeswitch: ready in ") and ready.endswith(" s: http://here; a first request:")
    assert curl == "curl http://here"
    assert rest == ["(EngineCore pid=1) ERROR 11-23 20:13:22 [a.py:1] fault", "Traceback", "unfinished", "after"]


def test_a_log_that_is_released_is_printed_whole(tmp_path: Path) -> None:
    done = run(f"""
        with opened() as console:
            os.write(2, b"early\\n")
            time.sleep(3 * SECONDS)
            console.release()
            os.write(2, b"late\\n")
            ready(console, {str(tmp_path)!r}, "http://here\\n")
    """)
    first, *rest, ready = done.stderr.splitlines()
    assert first.startswith("ropeswitch: versions: first stage") and rest == ["early", "late"]
    assert ready.startswith("ropeswitch: ready in ")


def test_a_log_that_grew_loses_no_line_that_was_not_read() -> None:
    run("""
        held_log.MOST_BYTES = 1000
        log = HeldLog()
        os.write(2, b"x" * 1100)
        assert len(log.read()) == 1100
        os.write(2, b"late")
        log.cut()
        assert log.read() == b"late"
        log.close(keep=False)
        assert not os.path.exists(log.path)
    """)


def test_progress_comes_now_and_then_in_one_short_line() -> None:
    done = run("""
        with opened() as console:
            console._over.set()
            console._thread.join()
            os.write(2, logged("INFO", "x" * 300).encode() + b"\\n")
            console.catch_up()
            for seconds in range(50):
                console._show_progress(seconds)
    """)
    [_, *lines] = done.stderr.splitlines()
    assert [line.split("(")[1].split(")")[0] for line in lines] == ["20 s", "40 s"]
    assert lines[0].startswith("ropeswitch: first stage (20 s): xxx") and len(lines[0]) == 160


@pytest.mark.parametrize("hold", [True, False])
def test_a_fault_of_a_start_ends_with_its_log_and_its_cause(hold: bool) -> None:
    done = run(f"""
        from types import SimpleNamespace
        from ropeswitch.server.start.refusals import channel
        from ropeswitch.server.start.run import run

        def serve(args):
            os.write(2, b"cause\\n")
            raise RuntimeError("no engine.")

        with opened() as console, channel():
            {"" if hold else "console.release()"}
            path = console.path
            print(run(SimpleNamespace(serve=serve), None, console))
        print(path)
    """)
    code, path = done.stdout.splitlines()
    lines = done.stderr.splitlines()
    assert code == "1" and lines[-1].startswith("ropeswitch: error: the server did not start: RuntimeError: no engine.")
    if not hold:
        assert lines[1:3] == ["cause", "Traceback (most recent call last):"]
        return
    held = Path(path)
    assert lines[1:-1] == [f"ropeswitch: vLLM's full log is in {path}"]
    assert held.read_text().startswith("cause\nTraceback ") and "RuntimeError: no engine." in held.read_text()
    held.unlink()
