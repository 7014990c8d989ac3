"""Lists the upstream symbols that the API server replaces, each with the upstream functions it relies on.

Nine symbols are replaced. Four are classes (``subclassed``): vLLM makes an object of each and passes it on before it calls
our endpoint plugin, so the object gets a subclass in place (``in_place.py``). The subclasses override sixteen methods: six
of ``OutputProcessor``, six of ``OpenAIServingModels``, three of ``AsyncLLM`` and one of ``BaseRenderer``, where one
attribute is also replaced. Five are functions or methods (``wrapped``). Three records replace nothing (``unchanged``): our
middlewares, routes and a stat logger depend on them. The workers report ``registry.PATCHES``, which includes none of these.

A record omits callers of a replaced method if a changed caller fails loudly, or costs only a header, a metric or speed.
Messages and log texts that the server matches are in ``upstream_texts.py``.
"""

from ropeswitch.model_patches.guard.fingerprints import Patch

_CLIENT = "vllm.v1.engine.async_llm.AsyncLLM"
_RESPONSES = "vllm.entrypoints.openai.responses.serving.OpenAIServingResponses"
_LAUNCHER = "vllm.entrypoints.launchers.launcher"
_METRICS = "vllm.entrypoints.serve.instrumentator.metrics.attach_router"
_MANAGER = "vllm.v1.metrics.loggers.StatLoggerManager"
_DETOKENIZER = "vllm.v1.engine.detokenizer.FastIncrementalDetokenizer"
_ENGINE_CLIENT = "vllm.v1.engine.core_client"
_MIDDLEWARE = "vllm.entrypoints.serve.middleware.register.init_entrypoints_middleware"
_OUTPUTS = "vllm.v1.engine.output_processor.OutputProcessor"
_RENDERER = "vllm.renderers.base.BaseRenderer"
_WAIT = "vllm.entrypoints.cli.serve.wait_for_completion_or_failure"
_SETUP = f"{_LAUNCHER}.setup_server"

_BEAM = "vllm.entrypoints.generate.beam_search.online.BeamSearchOnlineMixin.beam_search"
_MODELS = "vllm.entrypoints.openai.models.serving.OpenAIServingModels"
_BASE = "vllm.entrypoints.serve.engine.serving.BaseServing"
# Stores the handlers in the app's state, under the names by which we look them up.
_HANDLERS = ("vllm.entrypoints.generate.api_router.init_generate_state",)

_ALIASES = Patch(
    target=_MODELS,
    kind="subclassed",
    file="server/aliases.py",
    tests="tests/server/test_aliases.py",
    relies_on=dict.fromkeys(
        (
            f"{_MODELS}.is_base_model",
            f"{_MODELS}.model_name",
            f"{_MODELS}.resolve_lora",
            # Handlers use it to look up their request's model.
            f"{_BASE}._is_model_supported",
        ),
        "a request for MODEL@SET would get another set, or none",
    ),
)

SERVER_PATCHES = (
    Patch(
        target=_CLIENT,
        kind="subclassed",
        file="server/engine_client.py",
        tests="tests/server/test_context.py",
        relies_on=dict.fromkeys(
            (
                f"{_CLIENT}.generate",
                f"{_CLIENT}.encode",
                f"{_CLIENT}.shutdown",
                "vllm.renderers.inputs.preprocess.extract_prompt_len",
                f"{_OUTPUTS}.abort_requests",
                f"{_LAUNCHER}.serve_http",
            ),
            "a prompt would enter without its set, or its answer miss its headers",
        ),
    ),
    Patch(
        target=_WAIT,
        kind="wrapped",
        file="server/deaths.py",
        tests="tests/server/test_life_cycle.py",
        relies_on=dict.fromkeys(
            (
                _WAIT,
                f"{_OUTPUTS}.propagate_error",
            ),
            "API server processes would not learn that another one died",
        ),
    ),
    Patch(
        target=_SETUP,
        kind="wrapped",
        file="server/starting.py",
        tests="tests/server/test_starting.py",
        relies_on=dict.fromkeys(
            (
                _SETUP,
                f"{_LAUNCHER}.serve_http",
            ),
            "the port would not pass to the server when the engine is up",
        ),
    ),
    Patch(
        target=_METRICS,
        kind="unchanged",
        file="server/scheduling_metrics.py",
        tests="tests/server/test_scheduling_metrics.py",
        relies_on=dict.fromkeys(
            (
                _METRICS,
                f"{_ENGINE_CLIENT}.AsyncMPClient._call_utility_async",
            ),
            "the metrics of the engines' schedulers would be missing",
        ),
    ),
    Patch(
        target=f"{_RESPONSES}._generate_with_builtin_tools",
        kind="wrapped",
        file="server/engine_client.py",
        tests="tests/server/test_context.py",
        relies_on=dict.fromkeys(
            (*_HANDLERS, f"{_RESPONSES}._generate_with_builtin_tools"),
            "a prompt would enter without its set, or its answer miss its headers",
        ),
    ),
    # Wrapped on the two handlers that inherit it, chat and completions.
    Patch(
        target=_BEAM,
        kind="wrapped",
        file="server/engine_client.py",
        tests="tests/server/test_context.py",
        relies_on=dict.fromkeys(
            (*_HANDLERS, _BEAM), "a prompt would enter without its set, or its answer miss its headers"
        ),
    ),
    # The last --middleware is outside the middlewares that it adds. The others show whether a prompt is still waiting.
    Patch(
        target=_MIDDLEWARE,
        kind="unchanged",
        file="server/front/front.py",
        tests="tests/server/front/",
        relies_on=dict.fromkeys(
            (
                _MIDDLEWARE,
                f"{_OUTPUTS}.add_request",
                f"{_OUTPUTS}.process_outputs",
            ),
            "a request would pass the front unchecked",
        ),
    ),
    Patch(
        target=_RENDERER,
        kind="subclassed",
        file="server/ingest/renderer.py",
        tests="tests/server/ingest/test_renderer.py",
        relies_on=dict.fromkeys(
            (
                f"{_RENDERER}.validate_token_ids",
                f"{_RENDERER}._tokenize_singleton_prompt_async",
                f"{_RENDERER}._tokenize_prompt",
            ),
            "token IDs would pass unchecked",
        ),
    ),
    Patch(
        target=_OUTPUTS,
        kind="subclassed",
        file="server/length_metrics/outputs.py",
        tests="tests/server/length_metrics/test_outputs.py",
        relies_on=dict.fromkeys(
            (
                f"{_OUTPUTS}.add_request",
                f"{_OUTPUTS}._update_stats_from_output",
                f"{_OUTPUTS}._update_stats_from_finished",
                f"{_OUTPUTS}.abort_requests",
                f"{_OUTPUTS}.propagate_error",
                f"{_OUTPUTS}.do_tracing",
                # Ignores prefill statistics except those of a first output.
                f"{_OUTPUTS}.process_outputs",
                # They abort their request inside the except clause that shows the reason.
                f"{_CLIENT}.generate",
                f"{_CLIENT}.encode",
                # They send a request once it has been added, and do not read its prompt afterwards.
                f"{_CLIENT}.add_request",
                f"{_CLIENT}._add_request",
                f"{_ENGINE_CLIENT}.AsyncMPClient.add_request_async",
                f"{_ENGINE_CLIENT}.DPAsyncMPClient.add_request_async",
                f"{_ENGINE_CLIENT}.DPLBAsyncMPClient.get_core_engine_for_request",
            ),
            "metrics by length would count other requests, or a long prompt be lost",
        ),
    ),
    # Passes every step's statistics to each logger in its list, one of which is ours.
    Patch(
        target=_MANAGER,
        kind="unchanged",
        file="server/length_metrics/outputs.py",
        tests="tests/server/length_metrics/test_outputs.py",
        relies_on=dict.fromkeys(
            (f"{_MANAGER}.record",), "metrics by length would count other requests, or a long prompt be lost"
        ),
    ),
    Patch(
        target=f"{_DETOKENIZER}.__init__",
        kind="wrapped",
        file="server/ingest/detokenizer.py",
        tests="tests/server/ingest/test_detokenizer.py",
        relies_on=dict.fromkeys(
            (
                f"{_DETOKENIZER}.__init__",
                f"{_DETOKENIZER}._protected_step",
            ),
            "an answer's first text would be wrong",
        ),
    ),
    _ALIASES,
)

# Under plain ``vllm serve`` (``vllm_serve.py``).
VLLM_SERVE_PATCHES = (
    Patch(
        target=_CLIENT,
        kind="subclassed",
        file="server/vllm_serve.py",
        tests="tests/server/test_vllm_serve.py",
        relies_on=dict.fromkeys((f"{_CLIENT}.generate", f"{_CLIENT}.encode"), "a prompt would enter without its set"),
    ),
    _ALIASES,
)
