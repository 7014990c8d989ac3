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
_KV_CACHE = "vllm.v1.core.kv_cache_utils"

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
    # Log calls at which a process that refuses to start exits.
    Reading(_REFUSALS, f"{_ENGINE}.run_engine_core", ('logger.exception("EngineCore failed to start.")',)),
    Reading(_REFUSALS, f"{_WORKER}.worker_main", ('logger.exception("WorkerProc failed to start.")',)),
    Reading(_REFUSALS, f"{_WORKER}._execute_worker_rpc", ('logger.exception("WorkerProc hit an exception.")',)),
    Reading(_REFUSALS, "vllm.v1.utils.wait_for_completion_or_failure", ("logger.exception(", "raise RuntimeError(")),
    # The error that reports an engine process that exited during startup.
    Reading(
        "server/start/root_cause.py",
        "vllm.v1.engine.utils.wait_for_engine_startup",
        ("Engine core initialization failed. ", "{finished}"),
    ),
    # Functions whose presence in a traceback marks a refusal, and the message that we shorten.
    Reading(_REFUSALS, "vllm.engine.arg_utils.EngineArgs.create_engine_config", ("def create_engine_config(",)),
    Reading(_REFUSALS, f"{_KV_CACHE}.check_enough_kv_cache_memory", ("def check_enough_kv_cache_memory(",)),
    Reading(
        _REFUSALS,
        f"{_KV_CACHE}._check_enough_kv_cache_memory",
        ("max seq len", "GiB KV ", "cache is needed", "memory (", "estimated maximum model length is "),
    ),
    Reading(_REFUSALS, f"{_KV_CACHE}._auto_fit_max_model_len", ("def _auto_fit_max_model_len(",)),
    Reading(
        _REFUSALS, "vllm.v1.worker.gpu_worker.Worker.determine_available_memory", ("def determine_available_memory(",)
    ),
    Reading(_REFUSALS, "vllm.entrypoints.launchers.launcher.setup_server", ("def setup_server(",)),
    # The answer of an engine that is shutting down.
    Reading("server/app/engine_utilities.py", f"{_ENGINE}._reject_utility_in_shutdown", ('"Server shutting down"',)),
)
