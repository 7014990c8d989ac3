"""The upstream methods that ``outputs.py`` wraps on the API server's own objects, with their fingerprints."""

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
        relies_on={
            f"{_PROCESSOR}.add_request": "8bd2157710fa4ea1",
            # Ends a session that is told of its last chunk when all others are answered.
            f"{_PROCESSOR}._update_streaming_request_state": "18c4396a85e284b7",
        },
    ),
    Patch(
        target=f"{_PROCESSOR}._update_stats_from_output",
        kind="wrapped",
        file=_FILE,
        relies_on={
            f"{_PROCESSOR}._update_stats_from_output": "4ec230da2baae090",
            # Takes no notice of prefill statistics but those of a first output.
            f"{_PROCESSOR}.process_outputs": "fe3b1cbaf5667d21",
            f"{_STATS}.IterationStats.update_from_output": "c67975f6a6ec9cbb",
        },
    ),
    Patch(
        target=f"{_PROCESSOR}._update_stats_from_finished",
        kind="wrapped",
        file=_FILE,
        relies_on={
            f"{_PROCESSOR}._update_stats_from_finished": "fe9761c480af01cf",
            f"{_STATS}.IterationStats.update_from_finished_request": "4da361558e3e18d0",
        },
    ),
    Patch(
        target=f"{_PROCESSOR}.abort_requests",
        kind="wrapped",
        file=_FILE,
        relies_on={
            f"{_PROCESSOR}.abort_requests": "71f513fb0cad0615",
            f"{_CLIENT}.abort": "e608556f1865b909",
            # They abort their request inside the except clause that tells why.
            f"{_CLIENT}.generate": "65d27464fb32091f",
            f"{_CLIENT}.encode": "c26b5b88d1c4e49c",
            f"{_ENGINE_CLIENT}.get_core_engine_for_request": "20d20a818f82bf23",
        },
    ),
    Patch(
        target=f"{_PROCESSOR}.propagate_error",
        kind="wrapped",
        file=_FILE,
        relies_on={f"{_PROCESSOR}.propagate_error": "219c25b2e3f2797b"},
    ),
    Patch(
        target=_MANAGER,
        kind="wrapped",
        file=_FILE,
        relies_on={_MANAGER: "e7329a422cc5b633", f"{_CLIENT}._run_output_handler": "4df87952b37b0d4e"},
    ),
)
