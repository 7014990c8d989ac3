"""Lists what the API server relies on in vLLM: the symbols that it replaces, and the texts that it matches.

Two classes are subclassed: vLLM makes its engine client and that one's output processor from ours. Of the third, a renderer,
two methods are wrapped. Two records replace nothing (``unchanged``): our middlewares and routes depend on them.
A record omits callers of a replaced method that fail loudly, or cost only a header, a metric or speed.
"""

from ropeswitch.model_patches.guard.fingerprints import Patch, Reading

_CLIENT = "vllm.v1.engine.async_llm.AsyncLLM"
_CORE_CLIENT = "vllm.v1.engine.core_client"
_OUTPUTS = "vllm.v1.engine.output_processor.OutputProcessor"
_RENDERER = "vllm.renderers.base.BaseRenderer"
_METRICS = "vllm.entrypoints.serve.instrumentator.metrics.attach_router"
_MIDDLEWARE = "vllm.entrypoints.serve.middleware.register.init_entrypoints_middleware"


def _patch(target: str, kind: str, file: str, tests: str, breaks: str, *relies_on: str) -> Patch:
    """Return a record; ``breaks`` is what would go wrong if one of the functions that it relies on changed."""
    return Patch(target, kind, f"server/{file}", dict.fromkeys(relies_on, breaks), tests=f"tests/server/{tests}")


def _of(owner: str, *names: str) -> list[str]:
    return [f"{owner}.{name}" for name in names]


SERVER_PATCHES = (
    _patch(
        _CLIENT,
        "subclassed",
        "app/engine_client.py",
        "test_context.py",
        "a prompt would enter without its set, or its answer miss its headers",
        *_of(_CLIENT, "generate", "encode", "shutdown"),
        "vllm.renderers.inputs.preprocess.extract_prompt_len",
        f"{_OUTPUTS}.abort_requests",
        "vllm.entrypoints.launchers.launcher.serve_http",
    ),
    _patch(
        _METRICS,
        "unchanged",
        "metrics/scheduling_metrics.py",
        "test_scheduling_metrics.py",
        "the metrics of the engines' schedulers would be missing",
        _METRICS,
        f"{_CORE_CLIENT}.AsyncMPClient._call_utility_async",
    ),
    # The last --middleware is outside the middlewares that it adds. The others show whether a prompt is still waiting.
    _patch(
        _MIDDLEWARE,
        "unchanged",
        "front/front.py",
        "front/",
        "a request would pass the front unchecked",
        _MIDDLEWARE,
        *_of(_OUTPUTS, "add_request", "process_outputs"),
    ),
    _patch(
        _RENDERER,
        "wrapped",
        "front/bodies/long_prompts.py",
        "front/bodies/test_renderer.py",
        "token IDs would pass unchecked",
        *_of(_RENDERER, "validate_token_ids", "_tokenize_singleton_prompt_async", "_tokenize_prompt"),
    ),
    _patch(
        _OUTPUTS,
        "subclassed",
        "metrics/outputs.py",
        "metrics/test_outputs.py",
        "metrics by length would count other requests, or a long prompt or log-probabilities be lost",
        *_of(_OUTPUTS, "add_request", "_update_stats_from_output", "_update_stats_from_finished"),
        # The last one ignores prefill statistics except those of a first output.
        *_of(_OUTPUTS, "abort_requests", "propagate_error", "process_outputs"),
        # It sends a stream's last log-probabilities, so earlier ones can be dropped (app/paced_outputs.py).
        "vllm.v1.engine.output_processor.RequestState._new_completion_output",
        # They abort their request inside the except clause that shows the reason.
        *_of(_CLIENT, "generate", "encode"),
        # They send a request once it has been added, and do not read its prompt afterwards.
        *_of(_CLIENT, "add_request", "_add_request"),
        *_of(_CORE_CLIENT, "AsyncMPClient.add_request_async", "DPAsyncMPClient.add_request_async"),
        *_of(_CORE_CLIENT, "DPLBAsyncMPClient.get_core_engine_for_request"),
    ),
)

_INPUTS = "vllm.v1.engine.input_processor.InputProcessor"
_REFUSALS = "server/start/refusals.py"
_TOKENS = "vllm.renderers.params.TokenizeParams"
_WORKER = "vllm.v1.executor.multiproc_executor.WorkerProc"

# Startup and ``ropeswitch patches check`` look for each text in vLLM's source; the server relies on nothing else there.
UPSTREAM_TEXTS = (
    # Error messages with the code ``context_length_exceeded``.
    *(
        Reading("server/front/refusal.py", symbol, (text,))
        for symbol, text in (
            (f"{_TOKENS}._text_len_check", "This model's maximum context length is "),
            (f"{_TOKENS}._token_len_check", "This model's maximum context length is "),
            (f"{_TOKENS}.__post_init__", "cannot be greater than "),
            (f"{_INPUTS}._validate_prompt_len", "longer than the maximum model length of "),
        )
    ),
    # Log calls at which a process reports why it failed to start.
    *(
        Reading(_REFUSALS, symbol, (f'logger.exception("{text}")',))
        for symbol, text in (
            ("vllm.v1.engine.core.EngineCoreProc.run_engine_core", "EngineCore failed to start."),
            (f"{_WORKER}.worker_main", "WorkerProc failed to start."),
            (f"{_WORKER}._execute_worker_rpc", "WorkerProc hit an exception."),
        )
    ),
    # The error that reports an engine process that exited during startup.
    Reading(
        _REFUSALS, "vllm.v1.engine.utils.wait_for_engine_startup", ("Engine core initialization failed. ", "{finished}")
    ),
    # Functions whose presence in a traceback marks a refusal.
    *(
        Reading(_REFUSALS, path, (f"def {path.rpartition('.')[2]}(",))
        for path in (
            "vllm.engine.arg_utils.EngineArgs.create_engine_config",
            "vllm.entrypoints.launchers.launcher.setup_server",
            *_of("vllm.v1.core.kv_cache_planning", "_check_enough_kv_cache_memory", "_auto_fit_max_model_len"),
        )
    ),
)
