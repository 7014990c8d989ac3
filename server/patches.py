"""The upstream methods that are wrapped in the API server, with the fingerprints they were wrapped for.

They are wrapped on the server's own objects when it starts, so the workers, which report ``registry.PATCHES``, have none of
them. Each record also counts on the upstream method that calls its target: it gives the prompt before the response starts.
Of ``/metrics`` the route is wrapped, by a middleware; its record counts on what carries an engine's report to it.
"""

from ropeswitch.model_patches.guard.fingerprints import Patch
from ropeswitch.server.length_metrics.patches import METRICS_PATCHES

_CLIENT = "vllm.v1.engine.async_llm.AsyncLLM"
_CHAT = "vllm.entrypoints.openai.chat_completion.serving.OpenAIServingChat"
_COMPLETION = "vllm.entrypoints.openai.completion.serving.OpenAIServingCompletion"
_RESPONSES = "vllm.entrypoints.openai.responses.serving.OpenAIServingResponses"
_LAUNCHER = "vllm.entrypoints.launchers.launcher"
_METRICS = "vllm.entrypoints.serve.instrumentator.metrics.attach_router"
_DETOKENIZER = "vllm.v1.engine.detokenizer.FastIncrementalDetokenizer"
_ENGINE = "vllm.v1.engine.core.EngineCoreProc"
_ENGINE_CLIENT = "vllm.v1.engine.core_client"
_MIDDLEWARE = "vllm.entrypoints.serve.middleware.register.init_entrypoints_middleware"
_OUTPUTS = "vllm.v1.engine.output_processor.OutputProcessor"
_RENDERER = "vllm.renderers.base.BaseRenderer"
_WAIT = "vllm.entrypoints.cli.serve.wait_for_completion_or_failure"
_SETUP = f"{_LAUNCHER}.setup_server"
_TOKENS = "vllm.renderers.params.TokenizeParams"
_FILE = "server/engine_prompts.py"

# Puts the handlers into the app's state, under the names by which they are found there.
_HANDLERS = {"vllm.entrypoints.generate.api_router.init_generate_state": "925e666c047a1f73"}

SERVER_PATCHES = (
    Patch(
        target=f"{_CLIENT}.generate",
        kind="wrapped",
        file=_FILE,
        relies_on={
            f"{_CLIENT}.generate": "65d27464fb32091f",
            "vllm.renderers.inputs.preprocess.extract_prompt_len": "0e40c5a393c98708",
        },
    ),
    Patch(
        target=f"{_CLIENT}.shutdown",
        kind="wrapped",
        file="server/engine_watch.py",
        relies_on={
            f"{_CLIENT}.shutdown": "d8cce91153bb16d0",
            f"{_CLIENT}.abort": "e608556f1865b909",
            "vllm.v1.engine.output_processor.OutputProcessor.abort_requests": "71f513fb0cad0615",
            f"{_LAUNCHER}.serve_http": "87a0cd563728371a",
            f"{_LAUNCHER}.terminate_if_errored": "c3c7cc295c9fbe15",
        },
    ),
    Patch(
        target=_WAIT,
        kind="wrapped",
        file="server/deaths.py",
        relies_on={
            _WAIT: "57cd073e5f39cc98",
            "vllm.entrypoints.cli.serve.run_multi_api_server": "f870279abff4f422",
            f"{_OUTPUTS}.propagate_error": "219c25b2e3f2797b",
        },
    ),
    Patch(
        target=_SETUP,
        kind="wrapped",
        file="server/starting.py",
        relies_on={
            _SETUP: "b4375364d5bb2fd1",
            "vllm.entrypoints.cli.serve.run_multi_api_server": "f870279abff4f422",
            "vllm.entrypoints.launchers.api_server.entry.run_server": "c8a244750b064bc8",
            f"{_LAUNCHER}.serve_http": "87a0cd563728371a",
        },
    ),
    Patch(
        target=_METRICS,
        kind="wrapped",
        file="server/scheduling_metrics.py",
        relies_on={
            _METRICS: "51aa634b924e5987",
            "vllm.v1.metrics.prometheus.get_prometheus_registry": "7041a14689c14ada",
            f"{_ENGINE_CLIENT}.AsyncMPClient._call_utility_async": "85e0759886263269",
            f"{_ENGINE_CLIENT}.MPClient.ensure_alive": "d179a1de6118dc9a",
            f"{_ENGINE_CLIENT}._process_utility_output": "8b8efff1e58a63e2",
            f"{_ENGINE}._handle_client_request": "73dacb2fbd39c2c8",
            f"{_ENGINE}._reject_utility_in_shutdown": "39359d1efcbf6b3b",
        },
    ),
    Patch(
        target=f"{_CLIENT}.encode",
        kind="wrapped",
        file=_FILE,
        relies_on={f"{_CLIENT}.encode": "c26b5b88d1c4e49c"},
    ),
    Patch(
        target=f"{_RESPONSES}._generate_with_builtin_tools",
        kind="wrapped",
        file=_FILE,
        relies_on=_HANDLERS
        | {
            f"{_RESPONSES}._generate_with_builtin_tools": "ecd08ec29351c10a",
            f"{_RESPONSES}._create_responses": "e34030ce5161ccf1",
        },
    ),
    Patch(
        target=f"{_CHAT}.beam_search",
        kind="wrapped",
        file=_FILE,
        relies_on=_HANDLERS
        | {f"{_CHAT}.beam_search": "dad52c61214df5b5", f"{_CHAT}._create_chat_completion": "71a50c41b69b7b41"},
    ),
    Patch(
        target=f"{_COMPLETION}.beam_search",
        kind="wrapped",
        file=_FILE,
        relies_on=_HANDLERS
        | {f"{_COMPLETION}.beam_search": "dad52c61214df5b5", f"{_COMPLETION}._create_completion": "6477cf0b56504796"},
    ),
    Patch(
        target=f"{_OUTPUTS}.do_tracing",
        kind="wrapped",
        file="server/traces.py",
        relies_on={
            f"{_OUTPUTS}.do_tracing": "924785c73f7ea2a7",
            "vllm.tracing.otel.manual_instrument_otel": "ab7ec8cf85674cc0",
            "vllm.tracing.otel.init_otel_tracer": "a9a792f5d17af1a3",
        },
    ),
    # The last of --middleware lies outside what it adds. The rest are the errors that error_bodies.py knows by their
    # messages, and what tells whether a prompt still waits.
    Patch(
        target=_MIDDLEWARE,
        kind="wrapped",
        file="server/front/front.py",
        relies_on={
            _MIDDLEWARE: "a70fc6575f3fd28f",
            "vllm.entrypoints.serve.exception_handling.error_response.create_error_response": "ca914026fe9f2d78",
            "vllm.entrypoints.serve.utils.api_utils.get_max_tokens": "ea297b18ef5543d6",
            f"{_TOKENS}._text_len_check": "202393681214cdd7",
            f"{_TOKENS}._token_len_check": "eb059e59f78f9d21",
            f"{_RESPONSES}._validate_generator_input": "8870edf5f39564b1",
            "vllm.v1.engine.input_processor.InputProcessor._validate_prompt_len": "35ae01a4d7e67418",
            f"{_CLIENT}.check_admission": "746a5ab723016305",
            f"{_OUTPUTS}.add_request": "8bd2157710fa4ea1",
            f"{_OUTPUTS}.process_outputs": "fe3b1cbaf5667d21",
            f"{_OUTPUTS}._finish_request": "82f3c73041a603f0",
        },
    ),
    Patch(
        target=f"{_RENDERER}.validate_token_ids",
        kind="wrapped",
        file="server/ingest/renderer.py",
        relies_on={
            f"{_RENDERER}.validate_token_ids": "ba122c1f14fdeeb8",
            f"{_RENDERER}._tokenize_singleton_prompt_async": "61d41456134f26a1",
            f"{_RENDERER}._tokenize_prompt": "f99475941de01c82",
            f"{_RENDERER}._wants_offsets": "e7942dca8bafd4ae",
            f"{_TOKENS}.get_encode_kwargs": "8d33d72c7289eb00",
            "vllm.v1.engine.input_processor.InputProcessor._validate_model_input": "54c48a38f77a4bfa",
        },
    ),
    Patch(
        target=f"{_ENGINE_CLIENT}.AsyncMPClient.add_request_async",
        kind="wrapped",
        file="server/ingest/engine_messages.py",
        relies_on={
            f"{_ENGINE_CLIENT}.AsyncMPClient.add_request_async": "8464737e11a07be7",
            f"{_ENGINE_CLIENT}.DPAsyncMPClient.add_request_async": "ee32af62c08a8f0a",
            f"{_ENGINE_CLIENT}.DPLBAsyncMPClient.get_core_engine_for_request": "20d20a818f82bf23",
            f"{_CLIENT}.add_request": "ff06b1d0afe3414b",
            f"{_CLIENT}._add_request": "ef5b601dd66f2d46",
        },
    ),
    Patch(
        target=f"{_DETOKENIZER}.__init__",
        kind="wrapped",
        file="server/ingest/detokenizer.py",
        relies_on={
            f"{_DETOKENIZER}.__init__": "01c416befe095422",
            f"{_DETOKENIZER}._protected_step": "14fe4b5c5e9e8a22",
        },
    ),
    Patch(
        target=f"{_CHAT}.create_chat_completion",
        kind="wrapped",
        file="server/ingest/progress.py",
        relies_on=_HANDLERS
        | {"vllm.entrypoints.openai.chat_completion.api_router.create_chat_completion": "4dc5cc18f66870bb"},
    ),
    Patch(
        target=f"{_COMPLETION}.create_completion",
        kind="wrapped",
        file="server/ingest/progress.py",
        relies_on=_HANDLERS | {"vllm.entrypoints.openai.completion.api_router.create_completion": "28de52040251076e"},
    ),
    *METRICS_PATCHES,
)
