"""What the pages tell the reader to type works, and where they point there is something."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropeswitch.factors.file import parse
from ropeswitch.server.start import flags
from tests.docs.pages import ROOT, blocks, commands, pages

README = ROOT / "README.md"
START = ROOT / "docs" / "start.md"
FACTORS = ROOT / "docs" / "factors.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
FILE = re.compile(
    r"`((?:deploy|docs|factors|kernels|loadtests|model_patches|models|server|tests)/[\w./-]*(?:\.\w+|/))`"
)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_point_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?://", target):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    """Paths from the root, in backticks; a word in capitals is for the reader to fill in."""
    for name in FILE.findall(page.read_text(encoding="utf-8")):
        if re.search(r"\b[A-Z]+\.", name):
            continue
        assert (ROOT / name).exists(), f"{page.relative_to(ROOT)} names {name}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = [words[0] for words in commands(page, "make")]
    # A figure may name the commit whose target made it.
    named += re.findall(r"`make ([a-z-]+)[^`]*`(?!\s+of\s+commit)", page.read_text(encoding="utf-8"))
    assert set(named) <= set(targets)


def test_readme_is_one_screen_with_three_commands() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 120
    assert commands(README, "ropeswitch") == [["serve", "Qwen/Qwen3-8B", "--max-model-len", "131072"]]
    assert commands(README, "make") == [["serve"], ["demo"]]


def test_every_target_is_explained_in_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    explained = re.findall(r"^([a-z-]+):.* ## \w", makefile, re.MULTILINE)
    assert phony and phony[1].split() == explained


def test_the_bundled_model_answers_the_first_requests() -> None:
    """The reader's first two requests, at Hugging Face: one below the limit of the config's short list, one above."""
    # Those after them are for the model of `make demo`.
    request, *_ = [json.loads(words[words.index("-d") + 1]) for words in commands(START, "curl")]
    code, *_ = blocks(START, "python")
    variables: dict[str, str] = {}
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp | ast.Constant):
            exec(compile(ast.Module([statement], []), "start.md", "exec"), variables)

    folder = ROOT / "models" / request["model"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    limit = model.config.rope_parameters["original_max_position_embeddings"]
    assert request["model"] in code
    for messages, is_long in [
        (request["messages"], False),
        ([{"role": "user", "content": variables["question"]}], True),
    ]:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        length = prompt.shape[1]
        assert (length > limit) == is_long
        output = model.generate(prompt, max_new_tokens=20, do_sample=False)
        assert tokenizer.decode(output[0, length:]).count("38120") == 1


def test_example_file_is_valid() -> None:
    [example] = blocks(FACTORS, "json")
    assert parse(example).ladder.names == ("short", "long")


def test_every_flag_of_ours_is_documented() -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    for flag in set(re.findall(r"^ +(--[a-z-]+)", flags.parser().format_help(), re.MULTILINE)) - {
        "--help",
        "--host",
        "--port",
    }:
        assert re.search(f"`{flag}[ `]", text), flag


def test_every_variable_of_the_makefile_is_documented() -> None:
    variables = re.findall(r"^([A-Z_]+) \?=", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    text = CONFIGURATION.read_text(encoding="utf-8")
    for variable in variables:
        assert f"`{variable}`" in text
