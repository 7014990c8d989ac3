"""The switch's environment variables: what they fill, what the key keeps, and what is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm import EngineArgs

from ropeswitch.factors.errors import InputError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.file import LadderFile, save
from ropeswitch.model_patches.switch.config import variables
from ropeswitch.model_patches.switch.config.settings import settings_of

SETS = [
    {"name": "short", "max_length": 64, "factors": [1.0] * 16},
    {"name": "long", "max_length": 128, "factors": [4.0] * 16},
]
ALL = {
    "ROPESWITCH_LADDER": ("yarn:64k,128k", "yarn:64k,128k"),
    "ROPESWITCH_NATIVE_WINDOW": ("32k", 32768),
    "ROPESWITCH_LADDER_POLICY": ("reserve", "reserve"),
    "ROPESWITCH_ROPE_ANGLES": ("hf", "hf"),
    "ROPESWITCH_LENGTH_AWARE_SCHEDULING": ("false", False),
    "ROPESWITCH_STEP_LATENCY_TARGET": ("0.05", 0.05),
}
# Kubernetes' for services `ropeswitch`, `ropeswitch-ladder` and `ropeswitch-lader`, and variables of other readers.
OTHERS = dict.fromkeys(
    """
    ROPESWITCH_SERVICE_HOST ROPESWITCH_SERVICE_PORT ROPESWITCH_SERVICE_PORT_HTTP ROPESWITCH_PORT ROPESWITCH_PORT_80_TCP
    ROPESWITCH_PORT_80_TCP_ADDR ROPESWITCH_LADDER_SERVICE_HOST ROPESWITCH_LADER_PORT_80_TCP_PROTO ROPESWITCH_HEALTH_URL
    ROPESWITCH_REFUSAL_FILE OTHER_ROPESWITCH_LADDER PATH
    """.split(),
    "10.0.0.1",
)


def test_each_fills_its_field_and_others_leave_stock_engines_stock() -> None:
    environment = {name: text for name, (text, _) in ALL.items()} | OTHERS
    assert variables.read(environment) == {variables.FIELDS[name]: value for name, (_, value) in ALL.items()}
    assert variables.read({"ROPESWITCH_FACTORS": "a.json"}) == {"factors": "a.json"}
    assert set(variables.FIELDS) == {*ALL, "ROPESWITCH_FACTORS"}

    assert not variables.given(OTHERS) and variables.read(OTHERS) == {}
    assert not variables.given({"ROPESWITCH_LADDER": "", "ROPESWITCH_LADER": ""})
    assert variables.given({"ROPESWITCH_LADDER": "auto"}) and variables.given({"ROPESWITCH_LADER": "auto"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ROPESWITCH_LADER", "auto"),
        ("ROPESWITCH_LADDER", "foo"),
        ("ROPESWITCH_LADDER", "yarn:8k,"),
        ("ROPESWITCH_LADDER", "file:"),
        ("ROPESWITCH_NATIVE_WINDOW", "-1"),
        ("ROPESWITCH_LADDER_POLICY", "longest"),
        ("ROPESWITCH_ROPE_ANGLES", "float"),
        ("ROPESWITCH_LENGTH_AWARE_SCHEDULING", "1"),
        ("ROPESWITCH_STEP_LATENCY_TARGET", "0"),
    ],
)
def test_wrong_ones_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: "):
        variables.read({name: text})
    with pytest.raises(InputError, match=r"^ROPESWITCH_FACTORS: 'a' and ROPESWITCH_LADDER 'auto'"):
        variables.read({"ROPESWITCH_FACTORS": "a", "ROPESWITCH_LADDER": "auto"})


FIELD_VALUES = {
    "ladder": st.sampled_from(["auto", "none", "yarn:64k"]),
    "factors": st.sampled_from(["a.json"]),
    "sets": st.just(SETS),
    "native_window": st.integers(1, 100),
    "policy": st.sampled_from(["length", "reserve"]),
    "length_aware": st.booleans(),
    "parts": st.just([]),
}


@given(key=st.fixed_dictionaries({}, optional=FIELD_VALUES), names=st.sets(st.sampled_from(sorted(ALL))))
def test_the_key_keeps_its_fields_and_its_source(key: dict[str, Any], names: set[str]) -> None:
    environment = {name: ALL[name][0] for name in names}
    filled, taken = variables.filled(key, environment)
    assert {**filled, **key} == filled and set(filled) == {*key, *taken} and not set(key) & set(taken)
    assert set(taken.values()) <= names
    sources = {"ladder", "factors", "sets"}
    assert sources & set(filled) == sources & set(key) or not sources & set(key)
    if {"sets", "factors"} & set(key):
        assert "native_window" not in taken


def test_an_engine_without_the_key(phi3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "factors.json", LadderFile(FactorLadder.checked(SETS)))
    args: dict[str, Any] = {"model": str(phi3), "skip_tokenizer_init": True}
    monkeypatch.setenv("ROPESWITCH_FACTORS", str(tmp_path / "factors.json"))
    monkeypatch.setenv("ROPESWITCH_LADDER_POLICY", "reserve")
    settings = settings_of(EngineArgs(**args).create_engine_config())
    assert settings is not None and settings.ladder.names == ("short", "long") and settings.policy == "reserve"
    key = {"policy": "length", "sets": SETS[:1]}
    engine = EngineArgs(**args, additional_config={"other": 1, "ropeswitch": key})
    config = engine.create_engine_config()
    settings = settings_of(config)
    assert settings is not None and settings.ladder.names == ("short",) and settings.policy == "length"
    assert config.additional_config["other"] == 1
    # Made again, as by each API server of several, it is the same.
    assert settings_of(engine.create_engine_config()) == settings


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ROPESWITCH_LADDER", "yarn:4x", "ROPESWITCH_LADDER: 'yarn:4x'"),
        ("ROPESWITCH_NATIVE_WINDOW", "64", "ROPESWITCH_NATIVE_WINDOW: 64"),
        ("ROPESWITCH_LADDER", "file:missing.json", "missing.json"),
    ],
)
def test_what_the_model_forbids_names_the_variable(
    phi3: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InputError, match=message):
        EngineArgs(model=str(phi3), skip_tokenizer_init=True).create_engine_config()


@pytest.mark.full
def test_vllm_serve_ends_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPESWITCH_LADDER", "foo")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "ROPESWITCH_LADDER: 'foo' is unknown; allowed:" in last, done.stderr
