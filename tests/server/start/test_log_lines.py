"""What a user sees of vLLM's log, and that vLLM still words it so."""

import logging
import re
from pathlib import Path

import vllm
from vllm.logger import _DATE_FORMAT, _FORMAT
from vllm.logging_utils import NewLineFormatter

from ropeswitch.server.start.log.log_lines import MOST_WARNINGS, NOISE, SHUTDOWN, STAGES, LogLines, entry, stage

INSTALLED = Path(vllm.__file__).parent


def logged(level: str, text: str, *, place: str = "core.py:134", process: str = "EngineCore") -> str:
    return f"({process} pid=41) {level} 11-23 20:13:22 [{place}] {text}"


def feed(lines: LogLines, *texts: str) -> list[str]:
    return lines.feed("".join(f"{text}\n" for text in texts).encode())


def test_an_entry_is_one_of_vllm_s_own_format() -> None:
    record = logging.LogRecord("vllm.x", logging.WARNING, "/a/core.py", 7, "first\nsecond", None, None)
    record.vllm_process_name = "Worker_TP1"
    text = NewLineFormatter(_FORMAT, _DATE_FORMAT).format(record)
    first, second = text.splitlines()
    found = entry(first)
    assert found is not None and (found.level, found.text) == ("WARNING", "first")
    again = entry(second)
    assert again is not None and again.head == found.head
    # However its bytes come, every line is shown once.
    for size in (1, 7, 1000):
        lines, data = LogLines(), f"{text}\n".encode()
        lines.serving = True
        assert [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])] == [
            first,
            second,
        ]
    assert entry("Loading safetensors checkpoint shards: 0%") is None


# Where vLLM writes the texts that show a stage.
SOURCES = {
    "Starting to load model": ["v1/worker/cpu_model_runner.py", "v1/worker/gpu_model_runner.py"],
    "checkpoint shards": ["model_executor/model_loader/weight_utils.py"],
    "Dynamo bytecode transform time": ["compilation/backends.py"],
    "Warming up model for the compilation": ["v1/worker/cpu_model_runner.py"],
    "KV cache size": ["v1/core/kv_cache_utils.py"],
    "Capturing CUDA graphs": ["v1/worker/gpu_model_runner.py", "v1/worker/gpu/cudagraph_utils.py"],
}
NOISE_SOURCES = {
    "Failed to create oneDNN linear": "model_executor/layers/utils.py",
    "not found in LD_PRELOAD": "v1/worker/cpu_worker.py",
    "CPU backend doesn't allow to use": "v1/worker/cpu_worker.py",
    "Triton is not installed": "platforms/cpu.py",
    "doesn't include CPU backend": "triton_utils/importing.py",
    "Model Runner V2 requires Triton": "config/vllm.py",
    "Reset SSM cache type": "platforms/cpu.py",
    "Found ulimit of": "utils/system_utils.py",
    "Using custom scheduler class": "config/scheduler.py",
    "is used by process": "entrypoints/launchers/launcher.py",
    "api_server_count more than 1": "v1/metrics/loggers.py",
    "Enforce eager set": "config/vllm.py",
    "Inductor compilation was disabled": "config/vllm.py",
    "Default vLLM sampling parameters have been overridden": "config/model.py",
    "requires system-first ordering": "entrypoints/anthropic/serving.py",
    "Attempted to load weight": "model_executor/models/utils.py",
    "Compiling model again due to a load failure": "compilation/decorators.py",
}


def plain(pattern: str) -> str:
    """The words of a pattern before its first special character."""
    return re.split(r"[^-\w' ]| \\d", pattern)[0].strip()


def test_vllm_still_writes_the_texts_that_are_looked_for() -> None:
    assert {plain(pattern) for pattern, _ in STAGES} == set(SOURCES)
    assert {plain(pattern) for pattern in NOISE} == set(NOISE_SOURCES)
    assert f'"{SHUTDOWN}Executor: workers still' in (INSTALLED / "v1/executor/multiproc_executor.py").read_text()
    for text, paths in [*SOURCES.items(), *((text, [path]) for text, path in NOISE_SOURCES.items())]:
        for path in paths:
            # Source lines break texts.
            source = re.sub(r'"\s*f?"', "", (INSTALLED / path).read_text())
            assert text in source, (text, path)


def test_the_last_line_needs_no_end() -> None:
    lines = LogLines()
    lines.serving = True
    assert lines.feed(b"one\nFatal") == ["one"] and lines.feed(b" error") == []
    assert lines.rest() == ["Fatal error"] and lines.rest() == []


def test_stages() -> None:
    assert stage(logged("INFO", "Starting to load model /m...")) == "loading weights"
    bar = "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  1.1it/s]"
    assert stage(bar) == "loading weights: 1 of 2 files"
    assert (
        stage(logged("INFO", "CPU KV cache size: 1,024 tokens, 3 x")) == "warming up, with a KV cache of 1,024 tokens"
    )
    assert stage(logged("INFO", "something else")) is None


def test_a_progress_bar_is_read_before_its_line_ends() -> None:
    lines = LogLines()
    for done in (0, 1, 2):
        assert lines.feed(f"\rLoading safetensors checkpoint shards:  1% Completed | {done}/3 [0".encode()) == []
        assert lines.stage == f"loading weights: {done} of 3 files"
    # Cut anywhere, also within a character.
    data = ("\n" + logged("INFO", "CPU KV cache size: 7 tokens") + "\nropeswitch: é\n").encode()
    shown = [line for index in range(len(data)) for line in lines.feed(data[index : index + 1])]
    assert shown == ["ropeswitch: é"]
    assert lines.stage == "warming up, with a KV cache of 7 tokens"


def test_a_start_shows_warnings_once_and_few() -> None:
    lines = LogLines()
    assert feed(lines, logged("INFO", "a"), "raw", "Traceback (most recent call last):", "ropeswitch: ours") == [
        "ropeswitch: ours"
    ]
    first, second = logged("WARNING", "slow disk"), logged("WARNING", "see its page")
    assert feed(lines, first, second) == ["ropeswitch: vLLM warns: slow disk"], "two lines of one record"
    assert feed(lines, logged("INFO", "b"), first) == [], "a worker repeats another's"
    assert feed(lines, logged("WARNING", "Using custom scheduler class X.")) == []
    shown = [line for index in range(6) for line in feed(lines, logged("WARNING", f"w{index}", place=f"x.py:{index}"))]
    assert shown == ["ropeswitch: vLLM warns: w0", "ropeswitch: vLLM warns: w1"] and MOST_WARNINGS == 3
    assert lines.unseen == 4
    assert feed(lines, logged("ERROR", "EngineCore failed to start.", place="y.py:1")) == []
    assert lines.unseen == 5


def test_a_running_server_shows_everything_but_info() -> None:
    lines = LogLines()
    lines.serving = True
    shown = [
        logged("ERROR", "Error in count_tokens", place="a.py:1"),
        logged("ERROR", "Traceback (most recent call last):", place="a.py:1"),
        logged("WARNING", "slow"),
        "ERROR:    Exception in ASGI application",
        "Traceback (most recent call last):",
        '  File "x.py", line 3, in y',
        "Fatal Python error: Segmentation fault",
    ]
    hidden = [
        logged("INFO", "Avg prompt throughput: 3.0 tokens/s"),
        logged("WARNING", "[shutdown] Executor: workers still running after grace period"),
        "INFO:     Shutting down",
        "nanobind: leaked 4 instances!",
        ' - leaked type "triton._C.libtriton.ir.location"',
        " - ... skipped remainder",
        "See https://nanobind.readthedocs.io/en/latest/refleaks.html",
    ]
    # A record of noise, and what another level or a traceback has of it.
    shown += [
        logged("ERROR", "Enforce eager set, and then a fault", place="e.py:1"),
        logged("ERROR", "Traceback (most recent call last):", place="e.py:1"),
        '  File "/usr/lib/python3.11/multiprocessing/resource_tracker.py", line 209, in main',
        "RuntimeError: Triton is not installed",
    ]
    hidden += [
        logged("WARNING", "Enforce eager set", place="e.py:2"),
        logged("INFO", "disabling cudagraphs", place="e.py:2"),
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]
    port = [
        logged("WARNING", text, place="l.py:9") for text in ("port 8 is used by process 9 launched with command:", "x")
    ]
    assert feed(lines, *port) == []
    assert feed(lines, *(line for pair in zip(shown, hidden, strict=True) for line in pair)) == shown
