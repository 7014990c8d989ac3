"""What a user sees of vLLM's log, and that vLLM still formats it so."""

import logging
from pathlib import Path

import vllm
from vllm.logger import _DATE_FORMAT, _FORMAT
from vllm.logging_utils import NewLineFormatter

from ropeswitch.server.start.log.log_lines import LogLines

INSTALLED = Path(vllm.__file__).parent


def logged(level: str, text: str, *, place: str = "core.py:134") -> str:
    return f"(EngineCore pid=41) {level} 11-23 20:13:22 [{place}] {text}"


def feed(lines: LogLines, *texts: str) -> list[str]:
    return lines.feed("".join(f"{text}\n" for text in texts).encode())


def test_the_format_is_vllms() -> None:
    record = logging.LogRecord("vllm.x", logging.INFO, "/a/core.py", 7, "first\nsecond", None, None)
    record.vllm_process_name = "Worker_TP1"
    for level in (logging.INFO, logging.WARNING):
        record.levelno, record.levelname = level, logging.getLevelName(level)
        text = NewLineFormatter(_FORMAT, _DATE_FORMAT).format(record)
        # However its bytes come.
        for size in (1, 7, 1000):
            lines, data = LogLines(), f"{text}\n".encode()
            lines.serving = True
            shown = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])]
            assert shown == (text.splitlines() if level == logging.WARNING else []) and lines.last == "second"
    assert '"[shutdown] Executor: workers still' in (INSTALLED / "v1/executor/multiproc_executor.py").read_text()


def test_a_progress_bar_is_read_before_its_line_ends() -> None:
    lines = LogLines()
    for done in (0, 1, 2):
        assert lines.feed(f"\rLoading shards:  1% Completed | {done}/3 [0".encode()) == []
        assert lines.last == f"Loading shards: 1% Completed | {done}/3 [0"
    # Cut anywhere, also within a character.
    data = ("\n" + logged("INFO", "CPU KV cache size: 7 tokens") + "\nropeswitch: é\n").encode()
    shown = [line for index in range(len(data)) for line in lines.feed(data[index : index + 1])]
    assert shown == [lines.last] == ["ropeswitch: é"]


def test_a_start_shows_our_lines_alone_and_a_running_server_everything_but_info() -> None:
    lines = LogLines()
    shown = [
        logged("ERROR", "Error accepting a connection", place="launcher.py:117"),
        logged("WARNING", "slow"),
        "ERROR:    Exception in ASGI application",
        '  File "/usr/lib/python3.11/multiprocessing/resource_tracker.py", line 209, in main',
        "Fatal Python error: Segmentation fault",
        "ropeswitch: ours",
    ]
    hidden = [
        logged("INFO", "Avg prompt throughput: 3.0 tokens/s"),
        "| 1/2" + logged("INFO", "behind a progress bar"),
        logged("WARNING", "[shutdown] Executor: workers still running after grace period"),
        logged("WARNING", "port 8 is used by process 9", place="launcher.py:298"),
        "INFO:     Shutting down",
        "nanobind: leaked 4 instances!",
        ' - leaked type "triton._C.libtriton.ir.location"',
        " - ... skipped remainder",
        "See https://nanobind.readthedocs.io/en/latest/refleaks.html",
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]
    assert feed(lines, *shown, *hidden) == shown[-1:]
    lines.serving = True
    assert feed(lines, *shown) == shown and feed(lines, *hidden) == []
