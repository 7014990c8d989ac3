"""What a user sees of vLLM's log, and that vLLM still formats it so."""

import logging
from pathlib import Path

import vllm
from vllm.logger import _DATE_FORMAT, _FORMAT
from vllm.logging_utils import NewLineFormatter

from ropeswitch.server.start.log.log_lines import LogLines


def logged(level: str, text: str, *, place: str = "core.py:134") -> str:
    return f"(EngineCore pid=41) {level} 11-23 20:13:22 [{place}] {text}"


SHOWN = [
    logged("ERROR", "Error accepting a connection", place="launcher.py:117"),
    logged("WARNING", "slow"),
    "ERROR:    Exception in ASGI application",
    '  File "/usr/lib/python3.11/multiprocessing/resource_tracker.py", line 209, in main',
    "Fatal Python error: Segmentation fault",
    "ropeswitch: é",
]
HIDDEN = [
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


def feed(serving: bool, text: str, size: int) -> tuple[list[str], str]:
    """The lines shown of a log that comes in pieces of so many bytes, and the last line."""
    lines, data = LogLines(), text.encode()
    lines.serving = serving
    shown = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])]
    return shown, lines.last


def test_a_start_shows_our_lines_alone_and_a_running_server_everything_but_info() -> None:
    text = "\n".join([*HIDDEN, *SHOWN, ""])
    for size in (1, 7, 10_000):
        assert feed(False, text, size) == (SHOWN[-1:], SHOWN[-1]) and feed(True, text, size) == (SHOWN, SHOWN[-1])


def test_the_format_is_vllms() -> None:
    record = logging.LogRecord("vllm.x", logging.INFO, "/a/core.py", 7, "first\nsecond", None, None)
    record.vllm_process_name = "Worker_TP1"
    for level in (logging.INFO, logging.WARNING):
        record.levelno, record.levelname = level, logging.getLevelName(level)
        text = NewLineFormatter(_FORMAT, _DATE_FORMAT).format(record)
        assert feed(True, f"{text}\n", 7) == (text.splitlines() if level == logging.WARNING else [], "second")
    executor = Path(vllm.__file__).parent / "v1" / "executor" / "multiproc_executor.py"
    assert '"[shutdown] Executor: workers still' in executor.read_text()


def test_progress_shows_a_bar_before_its_line_ends() -> None:
    lines = LogLines()
    for done in (0, 1, 2):
        assert lines.feed(f"\rLoading shards:  1% Completed | {done}/3 [0".encode()) == []
        assert lines.last == f"Loading shards: 1% Completed | {done}/3 [0"
