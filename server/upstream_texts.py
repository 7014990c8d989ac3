"""Lists the texts of vLLM that the server matches, with the upstream function of each.

Startup and ``ropeswitch patches check`` look for each text in vLLM's source. Each is checked on its own, not by a
fingerprint of its function, because the server relies on nothing else there.
"""

from ropeswitch.model_patches.guard.fingerprints import Reading

_BODIES = "server/front/error_bodies.py"
_REFUSALS = "server/start/refusals.py"
_TOKENS = "vllm.renderers.params.TokenizeParams"
_ENGINE = "vllm.v1.engine.core.EngineCoreProc"
_WORKER = "vllm.v1.executor.multiproc_executor.WorkerProc"

UPSTREAM_TEXTS = (
    # Error messages with the code ``context_length_exceeded``.
    Reading(_BODIES, f"{_TOKENS}._text_len_check", ("This model's maximum context length is ",)),
    Reading(_BODIES, f"{_TOKENS}._token_len_check", ("This model's maximum context length is ",)),
    Reading(
        _BODIES,
        "vllm.v1.engine.input_processor.InputProcessor._validate_prompt_len",
        ("longer than the maximum model length of ",),
    ),
    Reading(_BODIES, f"{_TOKENS}.__post_init__", ("cannot be greater than ",)),
    # Log calls at which a process reports why it failed to start.
    Reading(_REFUSALS, f"{_ENGINE}.run_engine_core", ('logger.exception("EngineCore failed to start.")',)),
    Reading(_REFUSALS, f"{_WORKER}.worker_main", ('logger.exception("WorkerProc failed to start.")',)),
    Reading(_REFUSALS, f"{_WORKER}._execute_worker_rpc", ('logger.exception("WorkerProc hit an exception.")',)),
    # The error that reports an engine process that exited during startup.
    Reading(
        _REFUSALS,
        "vllm.v1.engine.utils.wait_for_engine_startup",
        ("Engine core initialization failed. ", "{finished}"),
    ),
    # Functions whose presence in a traceback marks a refusal.
    Reading(_REFUSALS, "vllm.engine.arg_utils.EngineArgs.create_engine_config", ("def create_engine_config(",)),
    Reading(_REFUSALS, "vllm.entrypoints.launchers.launcher.setup_server", ("def setup_server(",)),
    # The answer of an engine that is shutting down.
    Reading("server/app/engine_utilities.py", f"{_ENGINE}._reject_utility_in_shutdown", ('"Server shutting down"',)),
)
