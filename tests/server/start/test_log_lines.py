"""What a user sees of vLLM's log, and that vLLM still formats it so."""

import logging
from pathlib import Path

import vllm
from vllm.logger import _DATE_FORMAT, _FORMAT
from vllm.logging_utils import NewLineFormatter

from ropeswitch.server.start.log.log_lines import is_shown, text_of


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


def test_a_start_shows_our_lines_alone_and_a_running_server_everything_but_info() -> None:
    for serving, shown in ((False, SHOWN[-1:]), (True, SHOWN)):
        assert [line for line in [*HIDDEN, *SHOWN] if is_shown(line, serving)] == shown


def test_the_format_is_vllms() -> None:
    record = logging.LogRecord("vllm.x", logging.INFO, "/a/core.py", 7, "first\nsecond", None, None)
    record.vllm_process_name = "Worker_TP1"
    for level in (logging.INFO, logging.WARNING):
        record.levelno, record.levelname = level, logging.getLevelName(level)
        text = NewLineFormatter(_FORMAT, _DATE_FORMAT).format(record)
        lines = text.splitlines()
        assert [is_shown(line, serving=True) for line in lines] == [level == logging.WARNING] * 2
        assert text_of(lines[-1]) == "second"
    executor = Path(vllm.__file__).parent / "v1" / "executor" / "multiproc_executor.py"
    assert '"[shutdown] Executor: workers still' in executor.read_text()
