"""What a user sees of a start and of vLLM's log, in processes of their own: the console takes their standard error away."""

import subprocess
import sys
import textwrap
from pathlib import Path

PRELUDE = """\
import os, subprocess, sys, time
from pathlib import Path
from contextlib import closing
from ropeswitch.server.start.log.console import Console

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
    console.catch_up()
    Path(folder, "ready").write_text(text)
    console.ready = Path(folder, "ready")
    wait(lambda: console.serving)

def child(text):
    subprocess.run([sys.executable, "-c", f"import os; os.write(2, {text.encode()!r})"], check=True)
"""
FIRST = "ropeswitch: versions: first stage; --verbose prints vLLM's log"


def run(script: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_vllms_log_is_held_until_ready_and_then_its_errors_are_shown(tmp_path: Path) -> None:
    done = run(f"""
        with opened() as console:
            os.write(2, b"noise of C++\\n")
            print("for standard output")
            sys.stderr.write("noise of Python\\n")
            child(logged("INFO", "quiet") + logged("WARNING", "slow disk"))
            ready(console, {str(tmp_path)!r}, "http://here; a first request:\\ncurl http://here\\n")
            child("INFO:     request\\n" + logged("INFO", "throughput") + logged("ERROR", "fault") + "Traceback\\n")
            os.write(2, b"unfinished")
        print("after", file=sys.stderr)
    """)
    assert done.stdout == "for standard output\n"
    first, ready, *rest = done.stderr.splitlines()
    assert first == FIRST and ready.startswith("ropeswitch: ready in ")
    assert ready.endswith(" s: http://here; a first request:") and rest[0] == "curl http://here"
    assert rest[1:] == ["(EngineCore pid=1) ERROR 11-23 20:13:22 [a.py:1] fault", "Traceback", "unfinished", "after"]


def test_a_log_that_is_released_is_printed_whole_from_its_last_thousand_lines_on(tmp_path: Path) -> None:
    done = run(f"""
        with opened() as console:
            os.write(2, b"".join(b"%d\\n" % number for number in range(1100)))
            console.catch_up()
            console.release()
            os.write(2, b"late\\n")
            ready(console, {str(tmp_path)!r}, "http://here\\n")
    """)
    first, *rest, late, ready = done.stderr.splitlines()
    assert first == FIRST and rest == [str(number) for number in range(100, 1100)] and late == "late"
    assert ready.startswith("ropeswitch: ready in ")


def test_progress_comes_now_and_then_in_one_short_line_also_of_a_bar() -> None:
    done = run("""
        with opened() as started:
            started._over.set()
            started._watcher.join()
            os.write(2, (logged("INFO", "x" * 300) + "  warnings.warn(\\n").encode())
            started.catch_up()
            for seconds in range(70):
                started._show_progress(seconds)
            os.write(2, b"\\rLoading shards: 1/3\\rLoading shards: 2/3\\rLoad")
            wait(lambda: started._last.endswith("2/3"))
            started._show_progress(90)
    """)
    [_, *lines] = done.stderr.splitlines()
    assert [line.split("(")[1].split(")")[0] for line in lines] == ["30 s", "60 s", "90 s"]
    assert lines[0].startswith("ropeswitch: first stage (30 s): xxx") and len(lines[0]) == 160
    assert lines[2] == "ropeswitch: first stage (90 s): Loading shards: 2/3"


def test_a_fault_of_a_start_ends_with_its_log_and_its_cause() -> None:
    done = run("""
        from types import SimpleNamespace
        from ropeswitch.server.start.refusals import channel
        from ropeswitch.server.start.run import run

        def serve(args):
            os.write(2, b"cause\\n")
            raise RuntimeError("no engine.")

        with opened() as console, channel():
            print(run(SimpleNamespace(serve=serve), None, console))
    """)
    first, cause, traceback, *_, last = done.stderr.splitlines()
    assert (done.stdout, first, cause, traceback) == ("1\n", FIRST, "cause", "Traceback (most recent call last):")
    assert last == "ropeswitch: error: the server did not start: RuntimeError: no engine.; see the log above"
