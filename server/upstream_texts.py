"""Lists the texts of vLLM that the server matches, with the upstream function of each.

Startup and ``ropeswitch patches check`` look for each text in vLLM's source. Each is checked on its own, not by a
fingerprint of its function, because the server relies on nothing else there.
"""

from ropeswitch.model_patches.guard.fingerprints import Reading

_BODIES = "server/front/error_bodies.py"
_REFUSALS = "server/refusals.py"
_TOKENS = "vllm.renderers.params.TokenizeParams"
_ENGINE = "vllm.v1.engine.core.EngineCoreProc"
_WORKER = "vllm.v1.executor.multiproc_executor.WorkerProc"
_KV_CACHE = "vllm.v1.core.kv_cache_utils"
_MODELS = "vllm.entrypoints.serve.engine.serving.BaseServing"

UPSTREAM_TEXTS = (
    # Error messages that determine the OpenAI error code of a response.
    Reading(_BODIES, f"{_TOKENS}._text_len_check", ("This model's maximum context length is ",)),
    Reading(_BODIES, f"{_TOKENS}._token_len_check", ("This model's maximum context length is ",)),
    Reading(_BODIES, "vllm.entrypoints.serve.utils.api_utils.get_max_tokens", ("exceeds model's maximum ",)),
    Reading(
        _BODIES,
        "vllm.v1.engine.input_processor.InputProcessor._validate_prompt_len",
        ("longer than the maximum model length of ", ") plus the number of ", "is longer than the maximum "),
    ),
    Reading(
        _BODIES,
        "vllm.entrypoints.openai.responses.serving.OpenAIServingResponses._validate_generator_input",
        ("The engine prompt length ", "exceeds the max_model_len "),
    ),
    Reading(
        _BODIES,
        "vllm.entrypoints.generate.structured_decisions.strategies.DiffusionGemmaCanvasStrategy._read_input",
        ("tokens and a canvas read adds ", ", more than max_model_len="),
    ),
    Reading(_BODIES, f"{_TOKENS}.__post_init__", ("cannot be greater than ",)),
    Reading(_BODIES, "vllm.sampling_params.SamplingParams._verify_args", ("max_tokens must be at least 1, got ",)),
    Reading(_BODIES, "vllm.exceptions.QueueOverflowError", ("The engine is currently busy",)),
    Reading(
        _BODIES, "vllm.exceptions.MaxQueuedTokensError", ("The engine has reached its prefill token backlog limit",)
    ),
    Reading(_BODIES, f"{_MODELS}._check_model", ("The model `{request.model}` does not exist",)),
    Reading(_BODIES, f"{_MODELS}._maybe_get_adapters", ("The model `{request.model}` does not exist",)),
    # Log calls at which a process that refuses to start exits.
    Reading(_REFUSALS, f"{_ENGINE}.run_engine_core", ('logger.exception("EngineCore failed to start.")',)),
    Reading(_REFUSALS, f"{_WORKER}.worker_main", ('logger.exception("WorkerProc failed to start.")',)),
    Reading(_REFUSALS, f"{_WORKER}._execute_worker_rpc", ('logger.exception("WorkerProc hit an exception.")',)),
    Reading(_REFUSALS, "vllm.v1.utils.wait_for_completion_or_failure", ("logger.exception(", "raise RuntimeError(")),
    # The error that reports an engine process that exited during startup.
    Reading(
        "server/root_cause.py",
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
    Reading(_REFUSALS, "vllm.entrypoints.launchers.launcher.create_server_socket", ("def create_server_socket(",)),
    # The answer of an engine that is shutting down.
    Reading("server/engine_utilities.py", f"{_ENGINE}._reject_utility_in_shutdown", ('"Server shutting down"',)),
)
