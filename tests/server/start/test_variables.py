"""``ROPESWITCH_`` variables as defaults of the flags of ``ropeswitch serve``: flags come first, wrong values are refused."""

import argparse
from typing import Any

import pytest

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.start import flags

GIVEN = {"LADDER": "yarn:64k", "NATIVE_WINDOW": "32k", "LADDER_POLICY": "reserve", "ROPE_ANGLES": "hf"}
GIVEN |= {"LENGTH_AWARE_SCHEDULING": "false", "STEP_LATENCY_TARGET": "0.3"}
DEFAULTS = {"ladder": "yarn:64k", "native_window": 32768, "ladder_policy": "reserve", "rope_angles": "hf"}
DEFAULTS |= {"length_aware_scheduling": False, "step_latency_target": 0.3}


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("", {}),
        ("--ladder auto", {"ladder": "auto"}),
        ("--ladder-policy length --rope-angles exact", {"ladder_policy": "length", "rope_angles": "exact"}),
        ("--length-aware-scheduling", {"length_aware_scheduling": True}),
        # A list of factors has no use for the window.
        ("--factors a.json", {"ladder": "file:a.json", "native_window": None}),
        ("--ladder file:a.json", {"ladder": "file:a.json", "native_window": None}),
    ],
)
def test_a_variable_is_the_default_of_its_flag(
    monkeypatch: pytest.MonkeyPatch, words: str, changed: dict[str, Any]
) -> None:
    for name, value in GIVEN.items():
        monkeypatch.setenv(f"ROPESWITCH_{name}", value)
    parser = argparse.ArgumentParser()
    flags.add(parser)
    args = parser.parse_args(words.split())
    choice, window, _ = flags.ladder(args)
    assert choice is not None
    found = vars(args) | {"ladder": choice.text, "native_window": window}
    assert {name: found[name] for name in DEFAULTS} == DEFAULTS | changed


def test_a_ladder_that_the_model_refuses_names_the_variable(monkeypatch: pytest.MonkeyPatch, refusal: Any) -> None:
    monkeypatch.setenv("ROPESWITCH_LADDER", "yarn:64k")
    message = refusal(str(BUNDLED_MODEL), "--port", "0")
    assert message.startswith("ROPESWITCH_LADDER: 'yarn:64k' would replace the LongRoPE factors")
    assert "--ladder" not in message
