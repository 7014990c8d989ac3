"""What reaches a terminal or a pipe, in processes of their own: the console takes their standard error away."""

import os
import pty
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
from ropeswitch.server.start.log.held_log import HeldLog, silence_exit

def opened(*, hold):
    return closing(Console("versions", "first stage", hold=hold))

def wait(seen):
    for _ in range(2000):
        if seen():
            return
        time.sleep(0.01)
    raise AssertionError

def logged(level, text):
    return f"(EngineCore pid=1) {level} 11-23 20:13:22 [a.py:1] {text}\\n"

def write_whole(path, text):
    # As the server does: whoever sees the file sees all of it.
    draft = path.with_name("draft")
    draft.write_text(text)
    os.link(draft, path)

def child(text):
    subprocess.run([sys.executable, "-c", f"import os; os.write(2, {text.encode()!r})"], check=True)
"""


def run(script: str, stderr: int = subprocess.PIPE) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_start_and_a_run(tmp_path: Path) -> None:
    done = run(f"""
        with opened(hold=True) as console:
            path = console.path
            os.write(2, b"noise of C++\\n")
            print("for standard output")
            sys.stderr.write("noise of Python\\n")
            child(logged("INFO", "quiet") + logged("WARNING", "slow disk"))
            wait(lambda: console._lines.last == "slow disk")
            ready = Path({str(tmp_path)!r}, "ready")
            console.ready_from(ready)
            write_whole(ready, "http://here; a first request:\\ncurl http://here\\n")
            wait(lambda: console.serving)
            child("INFO:     request\\n" + logged("INFO", "throughput") + logged("ERROR", "fault") + "Traceback")
            held = Path(path).read_text()
        assert "noise of C++" in held and "quiet" in held and "noise of Python" in held
        assert not os.path.exists(path) and "VLLM_LOGGING_STREAM" not in os.environ
        print("after", file=sys.stderr)
    """)
    assert done.stdout == "for standard output\n"
    first, ready, curl, *rest = done.stderr.splitlines()
    assert first.startswith("ropeswitch: versions: first stage; vLLM's log: /")
    assert ready.startswith("ropeswitch: ready in ") and ready.endswith(" s: http://here; a first request:")
    assert curl == "curl http://here"
    assert rest == ["(EngineCore pid=1) ERROR 11-23 20:13:22 [a.py:1] fault", "Traceback", "after"]


@pytest.mark.parametrize("release", [True, False])
def test_what_is_not_held_is_printed_whole_and_ready_all_the_same(tmp_path: Path, release: bool) -> None:
    done = run(f"""
        with opened(hold={release}) as console:
            os.write(2, b"early\\n")
            time.sleep(3 * SECONDS)
            console.release()
            assert console.path is None
            os.write(2, b"late\\n")
            console.stage("any")
            ready = Path({str(tmp_path)!r}, "ready")
            console.ready_from(ready)
            write_whole(ready, "http://here\\n")
            wait(lambda: console.serving)
    """)
    first, *rest, ready = done.stderr.splitlines()
    assert first.startswith("ropeswitch: versions: first stage") and rest == ["early", "late"]
    assert ready.startswith("ropeswitch: ready in ")


def test_a_terminal_has_one_line_of_progress_that_goes_when_others_come() -> None:
    ours, theirs = pty.openpty()
    run(
        """
        with opened(hold=True) as console:
            console.stage("loading weights")
            time.sleep(3 * SECONDS)
            os.write(2, logged("INFO", "half").encode())
            time.sleep(3 * SECONDS)
            console.say("a line")
            time.sleep(3 * SECONDS)
    """,
        theirs,
    )
    os.close(theirs)
    text = b""
    while b"a line" not in text or not text.endswith(b"\r\x1b[K"):
        text += os.read(ours, 65536)
    os.close(ours)
    first, second, third = text.decode().split("\r\n")
    assert first.startswith("ropeswitch: versions: ") and third.startswith("ropeswitch: loading weights")
    assert "\r\x1b[Kropeswitch: loading weights (" in second and second.endswith(" s): half\r\x1b[Kropeswitch: a line")


def test_a_log_that_grew_is_emptied_only_once_it_is_read_to_its_end() -> None:
    run("""
        held_log.MOST_BYTES = 1000
        log = HeldLog()
        os.write(2, b"x" * 1100)
        assert len(log.read()) == 1100
        os.write(2, b"late")
        log.cut()
        assert log.read() == b"late"
        log.close(keep=False)
    """)


def test_a_running_server_s_log_is_shown_and_cut_also_without_its_name() -> None:
    done = run("""
        held_log.MOST_BYTES = 1000
        with opened(hold=True) as console:
            console._lines.serving = True
            os.unlink(console.path)
            for text in (b"a" * 2000, b"b" * 2000, b"c"):
                os.write(2, text + b"\\n")
                wait(lambda: os.fstat(2).st_size == 0 or text == b"c")
    """)
    assert done.stderr.splitlines()[1:] == ["a" * 2000, "b" * 2000, "c"]


def test_a_pipe_gets_progress_at_pauses_that_double_up_to_a_minute() -> None:
    done = run("""
        with opened(hold=True) as console:
            console._over.set()
            console._thread.join()
            os.write(2, logged("INFO", "x" * 300).encode() + b"\\n")
            console.catch_up()
            for seconds in range(200):
                console._show_progress(seconds)
    """)
    [_, *lines] = done.stderr.splitlines()
    assert [line.split("(")[1].split(")")[0] for line in lines] == ["10 s", "20 s", "40 s", "80 s", "140 s"]
    assert lines[0].startswith("ropeswitch: first stage (10 s): xxx") and len(lines[0]) == 160


def test_nothing_is_printed_when_the_interpreter_ends() -> None:
    done = run("""
        import atexit
        atexit.register(lambda: os.write(2, b"leaked\\n"))
        atexit.register(silence_exit)
        print("last", file=sys.stderr)
    """)
    assert done.stderr == "last\n"


@pytest.mark.parametrize("hold", [True, False])
def test_a_fault_of_a_start_ends_with_its_log_and_its_cause(hold: bool) -> None:
    done = run(f"""
        from types import SimpleNamespace
        from ropeswitch.server.start.run import run

        def serve(args):
            os.write(2, b"cause\\n")
            raise RuntimeError("no engine.")

        with opened(hold={hold}) as console:
            path = console.path
            print(run(SimpleNamespace(serve=serve), None, console))
        print(path)
    """)
    code, path = done.stdout.splitlines()
    lines = done.stderr.splitlines()
    failure = "ropeswitch: error: the server did not start: RuntimeError: no engine. ("
    assert code == "1" and lines[-1].startswith(failure)
    if not hold:
        assert lines[1:3] == ["cause", "Traceback (most recent call last):"]
        return
    held = Path(path)
    assert lines[1:-1] == [f"ropeswitch: vLLM's full log is in {path}"]
    assert held.read_text().startswith("cause\nTraceback ") and "RuntimeError: no engine." in held.read_text()
    held.unlink()
