"""The upstream methods that ``outputs.py`` wraps on the API server's own objects, with the functions each relies on."""

from ropeswitch.model_patches.guard.fingerprints import Patch

_PROCESSOR = "vllm.v1.engine.output_processor.OutputProcessor"
_CLIENT = "vllm.v1.engine.async_llm.AsyncLLM"
_STATS = "vllm.v1.metrics.stats"
_ENGINE_CLIENT = "vllm.v1.engine.core_client.DPLBAsyncMPClient"
_MANAGER = "vllm.v1.metrics.loggers.StatLoggerManager.record"
_FILE = "server/length_metrics/outputs.py"

METRICS_PATCHES = (
    Patch(
        target=f"{_PROCESSOR}.add_request",
        kind="wrapped",
        file=_FILE,
        relies_on=(
            f"{_PROCESSOR}.add_request",
            # Ends a session that is told of its last chunk when all others are answered.
            f"{_PROCESSOR}._update_streaming_request_state",
        ),
    ),
    Patch(
        target=f"{_PROCESSOR}._update_stats_from_output",
        kind="wrapped",
        file=_FILE,
        relies_on=(
            f"{_PROCESSOR}._update_stats_from_output",
            # Takes no notice of prefill statistics but those of a first output.
            f"{_PROCESSOR}.process_outputs",
            f"{_STATS}.IterationStats.update_from_output",
        ),
    ),
    Patch(
        target=f"{_PROCESSOR}._update_stats_from_finished",
        kind="wrapped",
        file=_FILE,
        relies_on=(
            f"{_PROCESSOR}._update_stats_from_finished",
            f"{_STATS}.IterationStats.update_from_finished_request",
        ),
    ),
    Patch(
        target=f"{_PROCESSOR}.abort_requests",
        kind="wrapped",
        file=_FILE,
        relies_on=(
            f"{_PROCESSOR}.abort_requests",
            f"{_CLIENT}.abort",
            # They abort their request inside the except clause that tells why.
            f"{_CLIENT}.generate",
            f"{_CLIENT}.encode",
            f"{_ENGINE_CLIENT}.get_core_engine_for_request",
        ),
    ),
    Patch(
        target=f"{_PROCESSOR}.propagate_error",
        kind="wrapped",
        file=_FILE,
        relies_on=(f"{_PROCESSOR}.propagate_error",),
    ),
    Patch(
        target=_MANAGER,
        kind="wrapped",
        file=_FILE,
        relies_on=(
            _MANAGER,
            f"{_CLIENT}._run_output_handler",
        ),
    ),
)
