"""The upstream methods that are wrapped in the API server, with the fingerprints they were wrapped for.

They are wrapped on the server's own objects when it starts, so the workers, which report ``registry.PATCHES``, have none of
them. Each record also counts on the upstream method that calls its target: it gives the prompt before the response starts.
"""

from ropeswitch.model_patches.fingerprints import Patch

_CLIENT = "vllm.v1.engine.async_llm.AsyncLLM"
_CHAT = "vllm.entrypoints.openai.chat_completion.serving.OpenAIServingChat"
_COMPLETION = "vllm.entrypoints.openai.completion.serving.OpenAIServingCompletion"
_RESPONSES = "vllm.entrypoints.openai.responses.serving.OpenAIServingResponses"
_LAUNCHER = "vllm.entrypoints.launchers.launcher"
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
            f"{_LAUNCHER}.serve_http": "87a0cd563728371a",
            f"{_LAUNCHER}.terminate_if_errored": "c3c7cc295c9fbe15",
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
)
