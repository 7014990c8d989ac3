"""The default tool-call parser: by family and chat template, and only where the user has said nothing."""

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import mistral_common
import pytest
import vllm.tool_parsers
from vllm.tool_parsers import ToolParserManager

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.start.tool_parsers import FAMILIES, choose
from tests.docs import tool_parsers
from tests.docs.made import written
from tests.docs.pages import ROOT

HERMES = "{% if tools %}<tool_call>{{ tools }}</tool_call>{% endif %}"
# Markup of the prompt, which a parser of answers does not name.
OF_PROMPTS = {"Environment: ipython", "```json", "<|tool|>", "<|channel|>"}


def arguments(model: Path | str, **changes: Any) -> Namespace:
    unset = ("tokenizer", "revision", "tokenizer_revision", "download_dir", "chat_template")
    given: dict[str, Any] = dict.fromkeys((*unset, "enable_auto_tool_choice", "tool_call_parser"))
    given |= {"model": str(model), "tokenizer_mode": "auto", "trust_remote_code": False, "skip_tokenizer_init": False}
    return Namespace(**given | changes)


def chosen(args: Namespace, family: str = "qwen3") -> tuple[bool, str | None]:
    choose(args, {"model_type": family})
    return args.enable_auto_tool_choice, args.tool_call_parser


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the bundled model's tokenizer, without a chat template."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json", "file"])
def test_the_template_decides_wherever_it_is(folder: Path, place: str) -> None:
    args = arguments(folder)
    if place == "tokenizer_config.json":
        values = json.loads((folder / place).read_text())
        templates = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": HERMES}]
        (folder / place).write_text(json.dumps(values | {"chat_template": templates}))
    else:
        (folder / place).write_text(HERMES)
        args.chat_template = str(folder / place) if place == "file" else None
    assert chosen(args) == (True, "hermes")


def test_mistrals_own_tokenizer_has_no_template_but_a_format(tmp_path: Path) -> None:
    [tokens, *_] = sorted(Path(mistral_common.__file__).parent.glob("data/tekken_*.json"))
    shutil.copy(tokens, tmp_path / "tekken.json")
    assert chosen(arguments(tmp_path, tokenizer_mode="mistral"), "mistral") == (True, "mistral")


def test_markup_tells_formats_of_one_family_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_adapter, "tool_parser_problem", lambda *_: None)
    coder = "{% if tools %}<tool_call><function=x></function></tool_call>{% endif %}"
    assert chosen(arguments(BUNDLED_MODEL, chat_template=coder)) == (True, "qwen3_coder")
    assert chosen(arguments(BUNDLED_MODEL, chat_template=HERMES), "qwen3_vl_moe_text") == (True, "hermes")
    v31 = "{{ tools }}<｜tool▁calls▁begin｜>"  # noqa: RUF001
    assert chosen(arguments(BUNDLED_MODEL, chat_template=v31), "deepseek_v3") == (True, "deepseek_v31")
    assert chosen(arguments(BUNDLED_MODEL, chat_template=v31 + "```json"), "deepseek_v3") == (True, "deepseek_v3")


@pytest.mark.parametrize(
    ("changes", "family"),
    [({"chat_template": "{{ messages }}"}, "qwen3"), ({"chat_template": HERMES}, "gpt2"), ({}, "qwen3")],
)
def test_no_parser_without_its_markup(folder: Path, changes: dict[str, Any], family: str) -> None:
    assert chosen(arguments(folder, **changes), family) == (False, None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"enable_auto_tool_choice": False}, (False, None)),
        ({"tool_call_parser": "xlam"}, (True, "xlam")),
        ({"enable_auto_tool_choice": False, "tool_call_parser": "xlam"}, (False, "xlam")),
    ],
)
def test_the_flags_win(changes: dict[str, Any], expected: tuple[bool, str]) -> None:
    assert chosen(arguments(BUNDLED_MODEL, chat_template=HERMES, **changes)) == expected


def test_a_tokenizer_that_cannot_be_read_turns_tool_calls_off(folder: Path) -> None:
    assert chosen(arguments(folder, chat_template=HERMES, skip_tokenizer_init=True)) == (False, None)
    (folder / "tokenizer_config.json").write_bytes(b"\xff\xfe\x00")
    for model in (folder, "no-such-organization/no-such-model"):
        args = arguments(model, chat_template=HERMES)
        [line] = choose(args, {"model_type": "qwen3"})
        assert (args.enable_auto_tool_choice, args.tool_call_parser) == (False, None)
        assert line.startswith("tool calls are off: the tokenizer or its chat template cannot be read (")


def test_a_parser_that_does_not_fit_the_tokenizer_is_left_out() -> None:
    args = arguments(BUNDLED_MODEL, chat_template="Environment: ipython {{ messages }}")
    [line] = choose(args, {"model_type": "llama"})
    assert "llama3_json does not fit the tokenizer (" in line and "python_tag" in line
    assert (args.enable_auto_tool_choice, args.tool_call_parser) == (False, None)


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
