"""Chooses the default of ``--tool-call-parser`` by the model's family and the tool-call markup in its chat template.

vLLM ships the parsers but requires the flag; its documentation names the parser of each family ("Tool Calling"). A template
without the family's markup was not written for tools, or uses another format, so it gets no parser.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from ropeswitch.server.app import vllm_adapter

_Choices = tuple[tuple[str, str], ...]
_HERMES = ("<tool_call>", "hermes")

FAMILIES: dict[tuple[str, ...], _Choices] = {
    ("apertus",): (("<|tools_prefix|>", "apertus"),),
    ("deepseek_v3",): (("```json", "deepseek_v3"), ("<｜tool▁calls▁begin｜>", "deepseek_v31")),  # noqa: RUF001
    ("ernie4_5_moe",): (("<tool_call>", "ernie45"),),
    ("gemma3",): (("<start_function_call>", "functiongemma"),),
    ("glm4_moe",): (("<arg_key>", "glm45"),),
    ("gpt_oss",): (("<|channel|>", "openai"),),
    ("granite",): (("<|tool_call|>", "granite"), ("<tool_call>", "granite4")),
    ("granitemoehybrid",): (("<tool_call>", "granite4"),),
    ("hunyuan_v1_moe",): (("<tool_calls>", "hunyuan_a13b"),),
    ("internlm2",): (("<|plugin|>", "internlm"),),
    ("jamba",): (("<tool_calls>", "jamba"),),
    ("kimi_k2",): (("<|tool_calls_section_begin|>", "kimi_k2"),),
    ("lfm2", "lfm2_moe"): (("<|tool_call_start|>", "lfm2"),),
    ("llama",): (("Environment: ipython", "llama3_json"), _HERMES),
    ("llama4",): (("<|python_start|>", "llama4_pythonic"),),
    ("minimax_m2",): (("<minimax:tool_call>", "minimax_m2"),),
    ("ministral3", "mistral", "mistral3", "mixtral"): (("[TOOL_CALLS]", "mistral"), _HERMES),
    ("olmo3",): (("<function_calls>", "olmo3"),),
    ("phi3",): (("<|tool|>", "phi4_mini_json"),),
    ("qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl"): (_HERMES,),
    ("qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe"): (
        ("<function=", "qwen3_coder"),
        _HERMES,
    ),
    ("seed_oss",): (("<seed:tool_call>", "seed_oss"),),
}
"""Markup in the chat template and vLLM's parser for it, by ``model_type``. The first markup found wins."""


def choose(args: Namespace, config: Mapping[str, Any]) -> list[str]:
    """Set ``--enable-auto-tool-choice`` and ``--tool-call-parser`` if the user set neither (None and empty).

    Returns at most one line for the startup summary. ``config`` is the model's text config.
    """
    if args.enable_auto_tool_choice is not None or args.tool_call_parser:
        # Naming a parser turns tool calls on, unless a flag turns them off.
        args.enable_auto_tool_choice = args.enable_auto_tool_choice is not False and bool(args.tool_call_parser)
        return []
    args.enable_auto_tool_choice = False
    family = str(config.get("model_type", "")).removesuffix("_text")
    choices = next((choices for names, choices in FAMILIES.items() if family in names), ())
    if not choices or args.skip_tokenizer_init:
        return []
    try:
        tokenizer = vllm_adapter.load_tokenizer(args)
        template = vllm_adapter.chat_templates(args, tokenizer)
    except Exception as error:
        # The user's own files, whose code may raise any error; choosing a default must not abort the start.
        return [
            "tool calls are off: the tokenizer or its chat template cannot be read"
            f" ({type(error).__name__}); set --tool-call-parser"
        ]
    parser = next((name for markup, name in choices if markup in template), None)
    if parser is None:
        return []
    if (reason := vllm_adapter.tool_parser_problem(tokenizer, parser)) is not None:
        return [f"tool calls are off: {parser} does not fit the tokenizer ({reason}); set --tool-call-parser"]
    args.enable_auto_tool_choice, args.tool_call_parser = True, parser
    return [f"tool calls are parsed as {parser} (--tool-call-parser chooses another format)"]
