"""The table of vLLM's flags, and the check of the command line that it makes fast."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ropeswitch.factors.errors import UsageError
from ropeswitch.server import vllm_adapter
from ropeswitch.server.flags import check, record
from ropeswitch.server.flags.table import make_parser, read_table
from ropeswitch.server.serve import _add_flags

NAMES = sorted({name for flag in read_table() for name in flag.flags} | {"--ladder", "--max-prompt-tokens"})
CHOICES = sorted({str(each) for flag in read_table() for each in flag.choices or ()})
KEYS = sorted({key for flag in read_table() for key in flag.keys or ()})
TEXTS = [
    *(
        "",
        "None",
        "none",
        "auto",
        "AUTO",
        "abc",
        "a b",
        "true",
        "a=b",
        "a.b",
        "x.yaml",
        "128k",
        "1.5k",
        "1K",
        "1.5K",
        "1X",
    ),
    *("0", "3", "-1", "-0.5", "-1e3", "0.5", "1e3", "nan", "inf", " 3 ", "1_000", "٣", "+3", "3.", "0x10", "9" * 30),
    *("{}", "{", "[]", "[1]", '"x"', "null", '{"a": 1}', '{"mode": 3}', '{"mode": 3k}', '{"a": NaN}', " {} ", "{}\n"),
    *("--nope", "--port", "-x", "-x.y", "-tp", "-O", "-O3", "--", "-"),
]


@pytest.fixture(scope="module")
def upstream() -> Any:
    """vLLM's parser with our flags."""
    parser = vllm_adapter.stock_parser()
    _add_flags(parser)
    return parser


@pytest.fixture(autouse=True)
def _no_ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ranges of numbers are those of vLLM's configs, which its parser does not check."""
    table = tuple(replace(flag, span=None) for flag in read_table())
    with monkeypatch.context() as patch:
        patch.setattr(check, "read_table", lambda: table)
        yield


def refuses(upstream: Any, argv: list[str]) -> bool:
    try:
        upstream.parse_args(list(argv))
    except (Exception, SystemExit):
        return True
    return False


def refusal(*argv: str) -> str | None:
    try:
        check.parse(argv, _add_flags)
    except UsageError as error:
        return str(error)
    return None


def test_the_table_is_that_of_the_installed_vllm() -> None:
    recorded = record.TABLE.read_text(encoding="utf-8")
    assert recorded == record.installed(), "record it again: python -m ropeswitch.server.flags.record"


def test_an_unknown_type_of_values_is_no_text(upstream: Any) -> None:
    parser = vllm_adapter.stock_parser()
    parser.add_argument("--new", type=complex)
    with pytest.raises(ValueError, match="--new: the type complex"):
        record.table(parser, {}, {})


def takes(parser: Any, flag: str, text: str) -> bool:
    action = parser._option_string_actions[flag]
    try:
        parser._check_value(action, parser._get_value(action, text))
    except (argparse.ArgumentError, ValidationError):
        return False
    return True


def test_every_flag_takes_the_values_that_vllm_takes(upstream: Any) -> None:
    ours = make_parser(check.read_table(), _add_flags)
    for flag in check.read_table():
        if not flag.flags or flag.action in ("true", "bool"):
            continue
        for text in [*TEXTS, *map(str, flag.choices or ())]:
            found, expected = takes(ours, flag.flags[0], text), takes(upstream, flag.flags[0], text)
            # What an object's fields hold is left to vLLM.
            assert found == expected or (found and flag.kind in ("object", "json")), (flag, text)


def spelled(name: str) -> st.SearchStrategy[str]:
    """Ways to write a flag, some of them wrong."""
    written = [name, name.replace("-", "_").replace("__", "--", 1), name[:-1], name + "x", name[: len(name) // 2 + 2]]
    return st.sampled_from(written)


@st.composite
def words(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(NAMES).flatmap(spelled))
    value = draw(st.sampled_from(TEXTS) | st.sampled_from(CHOICES) | st.text(max_size=5))
    form = draw(st.sampled_from(["alone", "joined", "apart", "apart", "several", "nested", "nested joined", "level"]))
    key = draw(st.sampled_from(KEYS) | st.sampled_from(["a", "a.b", "", "a+"]))
    return {
        "alone": [name],
        "joined": [f"{name}={value}"],
        "apart": [name, value],
        "several": [name, value, draw(st.sampled_from(TEXTS))],
        "nested": [f"{name}.{key}", value],
        "nested joined": [f"{name}.{key}={value}"],
        "level": [f"-O{value}"],
    }[form]


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@example(model=["m"], parts=[["-cc.mode", "3"], ["--compilation_config.pass-config.a+", "x,y"]])
@example(model=[], parts=[["--port", "1", "m"]])
@given(model=st.sampled_from([[], ["m"], ["m", "n"]]), parts=st.lists(words(), min_size=1, max_size=2))
def test_whatever_is_refused_vllm_refuses_too(upstream: Any, model: list[str], parts: list[list[str]]) -> None:
    argv = [*model, *(word for part in parts for word in part)]
    if (message := refusal(*argv)) is not None:
        assert refuses(upstream, argv), (argv, message)


VALUES = st.sampled_from(
    [True, False, None, 3, 0.5, -0.5, "x", "", "3", [], ["a", 1], {}, {"mode": 3}, {"a": {"b": [1]}}]
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    content=st.dictionaries(
        st.sampled_from(NAMES).flatmap(spelled).map(lambda name: name.lstrip("-")), VALUES, max_size=3
    )
)
def test_config_files_are_read_as_vllm_does(upstream: Any, tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(content))
    for argv in (["m", "--config", str(path)], ["--config", str(path), "--port", "3"], ["m", f"--config={path}"]):
        if (message := refusal(*argv)) is not None:
            assert refuses(upstream, argv), (argv, message)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--max-modl-len", "3"], "--max-modl-len: unknown flag; did you mean --max-model-len or --max-log-len?"),
        (["--zzzqqq"], "--zzzqqq: unknown flag; ropeswitch serve --help=all lists every flag"),
        (["--task", "embed"], "--task: unknown flag; use --runner pooling"),
        (
            ["--rope-scaling", "{}"],
            "--rope-scaling: unknown flag; vLLM removed it in 0.11.1. Use --max-model-len LENGTH",
        ),
        (
            ["--rope-theta", "5"],
            "--rope-theta: unknown flag; vLLM removed it in 0.11.1. The base is read from the model's",
        ),
        (["--port"], "--port: a value is missing; it must be a whole number"),
        (["--port", "8k"], "--port: '8k' must be a whole number"),
        (["--dtype", "flaot16"], "--dtype: 'flaot16' must be auto, bfloat16, float, float16, float32 or half; did you"),
        (["--kv-cache-memory-bytes", "1X"], "--kv-cache-memory-bytes: '1X' must be a whole number, such as 65536, 64k"),
        (["--max-model-len", "long"], "--max-model-len: 'long' must be a number of tokens, such as 131072, 128k"),
        (["--gpu-memory-utilization", "x"], "--gpu-memory-utilization: 'x' must be a number"),
        (["--compilation-config", "{"], "--compilation-config: '{' must be a JSON object: Expecting"),
        (["-cc.mod", "3"], "--compilation-config: unknown key 'mod'; did you mean mode?"),
        (["--override-generation-config", "x"], "--override-generation-config: 'x' must be JSON: Expecting value"),
        (
            ["--enforce-eager=1"],
            "--enforce-eager: takes no value, found '1'; write --enforce-eager or --no-enforce-eager",
        ),
        (["--headless=1"], "--headless: takes no value, found '1'; write --headless"),
        (["--max", "3"], "--max: ambiguous flag; did you mean --max-"),
        (["--access-log", "on"], "--access-log: 'on' must be json, all or off"),
        (["m", "n"], "'n': unexpected argument after MODEL 'm'"),
        (["--config", "x.txt"], "--config: 'x.txt' must be a file whose name ends in .yaml or .yml"),
        (["--config", "none.yaml"], "--config: 'none.yaml' cannot be read: No such file"),
        (["--config"], "--config: a value is missing"),
        (["--config", "a.yaml", "--config", "b.yaml"], "--config: given 2 times"),
        (["-cc.mode"], "-cc.mode: a value is missing"),
    ],
)
def test_refusals(upstream: Any, argv: list[str], expected: str) -> None:
    message = refusal(*argv)
    assert message is not None and message.startswith(expected)
    assert refuses(upstream, argv)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: x", "--port (in --config {path}): 'x' must be a whole number"),
        ("prt: 3", "--prt (in --config {path}): unknown flag; did you mean --port"),
        ("- port", "--config: '{path}' must hold a mapping from flags to values"),
        ("{", "--config: '{path}' is not valid YAML"),
        (
            "- api-key=sk-secret",
            "--config: '{path}' must hold a mapping from flags to values, such as 'port: 8000'; found a list",
        ),
        ('port: 1\napi-key: "sk-secret\nseed: 1', "--config: '{path}' is not valid YAML: line "),
        ("port: 1\napi-key: *sk-secret", "--config: '{path}' is not valid YAML: line 2: found undefined alias"),
        (
            "port: 1\napi-key: !sk-secret x",
            "--config: '{path}' is not valid YAML: line 2: could not determine a constructor for the tag",
        ),
        (
            "port: 1\napi-key: !sk-secret!x y",
            "--config: '{path}' is not valid YAML: line 2: found undefined tag handle",
        ),
        ("1: 2", "--config: '{path}': 1 must be the name of a flag"),
    ],
)
def test_config_files_that_are_wrong(upstream: Any, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    message = refusal("--config", str(path))
    assert message is not None and message.startswith(expected.format(path=path))
    assert "secret" not in message
    assert refuses(upstream, ["--config", str(path)])
