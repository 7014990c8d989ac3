"""The default tool-call parser: by family and chat template, and only where the user has said nothing."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import vllm.tool_parsers
from vllm.tool_parsers import ToolParserManager

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server import vllm_adapter
from ropeswitch.server.tool_parsers import FAMILIES, choose
from tests.docs import tool_parsers
from tests.docs.made import written
from tests.docs.pages import ROOT

HERMES = "{% if tools %}<tool_call>{{ tools }}</tool_call>{% endif %}"
# Markup of the prompt, which a parser of answers does not name.
OF_PROMPTS = {"Environment: ipython", "```json", "<|tool|>", "<|channel|>"}


def arguments(model: Path | str, **changes: Any) -> Namespace:
    given = {
        "model": str(model),
        "tokenizer": None,
        "revision": None,
        "tokenizer_revision": None,
        "download_dir": None,
        "chat_template": None,
        "hf_token": None,
        "skip_tokenizer_init": False,
        "enable_auto_tool_choice": None,
        "tool_call_parser": None,
    }
    return Namespace(**given | changes)


def chosen(args: Namespace, family: str = "qwen3") -> tuple[bool, str | None]:
    choose(args, {"model_type": family}, lambda *_: None)
    return args.enable_auto_tool_choice, args.tool_call_parser


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "several", "flag", "file"])
def test_the_template_decides_wherever_it_is(tmp_path: Path, name: str) -> None:
    args = arguments(tmp_path)
    if name == "chat_template.jinja":
        (tmp_path / name).write_text(HERMES)
    elif name == "flag":
        args.chat_template = HERMES
    elif name == "file":
        args.chat_template = str(tmp_path / "mine.jinja")
        (tmp_path / "mine.jinja").write_text(HERMES)
    else:
        named = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": HERMES}]
        template = named if name == "several" else HERMES
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert chosen(args) == (True, "hermes")


def test_markup_tells_formats_of_one_family_apart() -> None:
    coder = "{% if tools %}<tool_call><function=x></function></tool_call>{% endif %}"
    assert chosen(arguments("none", chat_template=coder)) == (True, "qwen3_coder")
    assert chosen(arguments("none", chat_template=HERMES), "qwen3_vl_moe_text") == (True, "hermes")
    v31 = "{{ tools }}<｜tool▁calls▁begin｜>"  # noqa: RUF001
    assert chosen(arguments("none", chat_template=v31), "deepseek_v3") == (True, "deepseek_v31")
    assert chosen(arguments("none", chat_template=v31 + "```json"), "deepseek_v3") == (True, "deepseek_v3")


@pytest.mark.parametrize(
    ("changes", "family"),
    [({"chat_template": "{{ messages }}"}, "qwen3"), ({"chat_template": HERMES}, "gpt2"), ({}, "qwen3")],
)
def test_no_parser_without_its_markup(tmp_path: Path, changes: dict[str, Any], family: str) -> None:
    assert chosen(arguments(tmp_path, **changes), family) == (False, None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"enable_auto_tool_choice": False}, (False, None)),
        ({"enable_auto_tool_choice": True, "tool_call_parser": "xlam"}, (True, "xlam")),
        ({"tool_call_parser": "xlam"}, (True, "xlam")),
        ({"enable_auto_tool_choice": False, "tool_call_parser": "xlam"}, (False, "xlam")),
    ],
)
def test_the_flags_win(changes: dict[str, Any], expected: tuple[bool, str]) -> None:
    assert chosen(arguments("none", chat_template=HERMES, **changes)) == expected


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "[]",
        "{",
        "\ufeff{}",
        '{"chat_template": null}',
        '{"chat_template": [null, 5, {"name": "x"}, {"template": null}]}',
        '{"chat_template": {"default": 5}}',
        b"\xff\xfe\x00",
    ],
)
def test_odd_tokenizer_configs_do_not_end_the_start(tmp_path: Path, content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "tokenizer_config.json").write_bytes(data)
    assert chosen(arguments(tmp_path)) == (False, None)


def test_templates_in_a_mapping_are_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": {"tool_use": HERMES}}))
    assert chosen(arguments(tmp_path)) == (True, "hermes")


@pytest.mark.parametrize("model", ["s3://bucket/model", "no-such-organization/no-such-model"])
def test_models_that_are_not_on_the_hub_get_none(model: str) -> None:
    assert chosen(arguments(model)) == (False, None)


def test_a_parser_that_does_not_fit_the_tokenizer_is_left_out() -> None:
    args = arguments("none", chat_template=HERMES)
    [line] = choose(args, {"model_type": "qwen3"}, lambda *_: "no such token")
    assert "hermes does not fit the tokenizer (no such token)" in line
    assert (args.enable_auto_tool_choice, args.tool_call_parser) == (False, None)


def test_the_tokenizer_is_tried_with_vllms_parser() -> None:
    args = arguments(BUNDLED_MODEL, tokenizer_mode="auto", trust_remote_code=False)
    assert vllm_adapter.tool_parser_problem(args, "hermes") is None
    problem = vllm_adapter.tool_parser_problem(args, "llama3_json")
    assert problem is not None and "python_tag" in problem


def test_each_parser_is_vllms_and_reads_its_markup() -> None:
    folder = Path(vllm.tool_parsers.__file__).parent
    sources = "\n".join(
        file.read_text(encoding="utf-8") for top in (folder, folder.parent / "parser") for file in top.rglob("*.py")
    )
    for choices in FAMILIES.values():
        for markup, parser in choices:
            assert parser in ToolParserManager.list_registered()
            assert markup in OF_PROMPTS or markup in sources, markup


def test_the_table_of_the_docs_is_made_from_the_code() -> None:
    page = (ROOT / tool_parsers.PAGE).read_text(encoding="utf-8")
    assert "made by make docs-tool-parsers" in page
    assert written(page, "docs-tool-parsers", tool_parsers.TABLES) == page
