"""The upstream methods that ``outputs.py`` wraps on the API server's own objects, with the functions each relies on."""

from ropeswitch.model_patches.guard.fingerprints import Patch

_PROCESSOR = "vllm.v1.engine.output_processor.OutputProcessor"
_CLIENT = "vllm.v1.engine.async_llm.AsyncLLM"
_MANAGER = "vllm.v1.metrics.loggers.StatLoggerManager.record"
_FILE = "server/length_metrics/outputs.py"

METRICS_PATCHES = (
    Patch(
        target=f"{_PROCESSOR}.add_request",
        kind="wrapped",
        file=_FILE,
        relies_on=(f"{_PROCESSOR}.add_request",),
    ),
    Patch(
        target=f"{_PROCESSOR}._update_stats_from_output",
        kind="wrapped",
        file=_FILE,
        relies_on=(
            f"{_PROCESSOR}._update_stats_from_output",
            # Takes no notice of prefill statistics but those of a first output.
            f"{_PROCESSOR}.process_outputs",
        ),
    ),
    Patch(
        target=f"{_PROCESSOR}._update_stats_from_finished",
        kind="wrapped",
        file=_FILE,
        relies_on=(f"{_PROCESSOR}._update_stats_from_finished",),
    ),
    Patch(
        target=f"{_PROCESSOR}.abort_requests",
        kind="wrapped",
        file=_FILE,
        relies_on=(
            f"{_PROCESSOR}.abort_requests",
            # They abort their request inside the except clause that tells why.
            f"{_CLIENT}.generate",
            f"{_CLIENT}.encode",
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
        relies_on=(_MANAGER,),
    ),
)
