"""Lists the upstream symbols that the API server replaces, each with the upstream functions it relies on.

Two classes are subclassed: vLLM makes its engine client and that one's output processor from ours (``classes.py``). Of the
third, a renderer, two methods are wrapped. Two records replace nothing (``unchanged``): our middlewares and routes depend on
them. The workers report ``registry.PATCHES``, which includes none of these.

A record omits callers of a replaced method if a changed caller fails loudly, or costs only a header, a metric or speed.
Messages and log texts that the server matches are in ``upstream_texts.py``.
"""

from ropeswitch.model_patches.guard.fingerprints import Patch

_CLIENT = "vllm.v1.engine.async_llm.AsyncLLM"
_LAUNCHER = "vllm.entrypoints.launchers.launcher"
_METRICS = "vllm.entrypoints.serve.instrumentator.metrics.attach_router"
_ENGINE_CLIENT = "vllm.v1.engine.core_client"
_MIDDLEWARE = "vllm.entrypoints.serve.middleware.register.init_entrypoints_middleware"
_OUTPUTS = "vllm.v1.engine.output_processor.OutputProcessor"
_RENDERER = "vllm.renderers.base.BaseRenderer"

SERVER_PATCHES = (
    Patch(
        target=_CLIENT,
        kind="subclassed",
        file="server/app/engine_client.py",
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
        target=_METRICS,
        kind="unchanged",
        file="server/metrics/scheduling_metrics.py",
        tests="tests/server/test_scheduling_metrics.py",
        relies_on=dict.fromkeys(
            (
                _METRICS,
                f"{_ENGINE_CLIENT}.AsyncMPClient._call_utility_async",
            ),
            "the metrics of the engines' schedulers would be missing",
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
        kind="wrapped",
        file="server/front/bodies/renderer.py",
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
        file="server/metrics/outputs.py",
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
)
