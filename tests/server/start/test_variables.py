"""``ROPESWITCH_`` variables as defaults of the flags of ``ropeswitch serve``: flags come first, wrong values are refused."""

import argparse
from typing import Any

import pytest

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.start import flags
from tests.server.running import refused


def taken(*words: str) -> argparse.Namespace:
    """The flags, with the ladder's text and the window that flags or variables choose."""
    parser = argparse.ArgumentParser()
    flags.add(parser)
    args, _ = parser.parse_known_args(words)
    choice, window, _ = flags.ladder(args)
    return argparse.Namespace(**vars(args) | {"ladder": choice and choice.text, "native_window": window})


@pytest.mark.parametrize(
    ("variables", "words", "expected"),
    [
        ({}, ("a/b",), {"ladder": "yarn:64k", "native_window": 32768, "ladder_policy": "reserve", "rope_angles": "hf"}),
        ({}, ("a/b",), {"length_aware_scheduling": False, "step_latency_target": 0.3}),
        ({}, ("--ladder", "auto"), {"ladder": "auto", "native_window": 32768}),
        (
            {},
            ("--ladder-policy", "length", "--rope-angles", "exact"),
            {"ladder_policy": "length", "rope_angles": "exact"},
        ),
        ({}, ("--length-aware-scheduling",), {"length_aware_scheduling": True}),
        # A list of factors has no use for the window.
        ({}, ("--factors", "a.json"), {"ladder": "file:a.json", "native_window": None}),
        ({}, ("--ladder", "file:a.json"), {"ladder": "file:a.json", "native_window": None}),
        ({"LADDER": "", "FACTORS": "a.json"}, (), {"ladder": "file:a.json"}),
        ({"LADDER": "", "FACTORS": "a.json"}, ("--ladder", "auto"), {"ladder": "auto"}),
    ],
)
def test_variables_are_the_defaults_of_flags(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: tuple[str, ...], expected: dict[str, Any]
) -> None:
    given = {"LADDER": "yarn:64k", "NATIVE_WINDOW": "32k", "LADDER_POLICY": "reserve", "ROPE_ANGLES": "hf"}
    given |= {"LENGTH_AWARE_SCHEDULING": "false", "STEP_LATENCY_TARGET": "0.3"} | variables
    for name, value in given.items():
        if value:
            monkeypatch.setenv(f"ROPESWITCH_{name}", value)
    args = vars(taken(*words))
    assert {name: args[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LADDER", "yarn:big", "'big' must be a whole number of tokens"),
        ("LADER", "auto", "unknown variable; allowed: "),
        # By the model.
        ("LADDER", "yarn:64k", "'yarn:64k' would replace the LongRoPE factors"),
    ],
)
def test_a_wrong_one_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"ROPESWITCH_{name}", value)
    message = refused("serve", str(BUNDLED_MODEL), "--port", "0")
    assert message.startswith(f"ROPESWITCH_{name}: {expected}") and "--ladder" not in message
