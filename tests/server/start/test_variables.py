"""``ROPESWITCH_`` variables as defaults of the flags of ``ropeswitch serve``: flags come first, wrong values are refused."""

import argparse

import pytest

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.start import flags
from tests.server.running import PROGRAM, environment, refused


def taken(*words: str) -> argparse.Namespace:
    """The flags, with the ladder's text and the window that flags or variables choose."""
    parser = argparse.ArgumentParser()
    flags.add(parser)
    args, _ = parser.parse_known_args(words)
    choice, window, _ = flags.ladder(args)
    return argparse.Namespace(**vars(args) | {"ladder": choice and choice.text, "native_window": window})


def test_they_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPESWITCH_LADDER", "yarn:64k")
    monkeypatch.setenv("ROPESWITCH_NATIVE_WINDOW", "32k")
    monkeypatch.setenv("ROPESWITCH_LADDER_POLICY", "reserve")
    monkeypatch.setenv("ROPESWITCH_ROPE_ANGLES", "hf")
    monkeypatch.setenv("ROPESWITCH_LENGTH_AWARE_SCHEDULING", "false")
    monkeypatch.setenv("ROPESWITCH_STEP_LATENCY_TARGET", "0.3")
    args = taken("a/b")
    assert (args.ladder, args.native_window) == ("yarn:64k", 32768)
    assert (args.ladder_policy, args.rope_angles) == ("reserve", "hf")
    assert (args.length_aware_scheduling, args.step_latency_target) == (False, 0.3)


def test_flags_have_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPESWITCH_LADDER", "yarn:64k")
    monkeypatch.setenv("ROPESWITCH_NATIVE_WINDOW", "32k")
    monkeypatch.setenv("ROPESWITCH_LADDER_POLICY", "reserve")
    monkeypatch.setenv("ROPESWITCH_LENGTH_AWARE_SCHEDULING", "false")
    args = taken("--ladder", "auto", "--ladder-policy", "length", "--length-aware-scheduling")
    assert (args.ladder, args.native_window, args.ladder_policy) == ("auto", 32768, "length")
    assert args.length_aware_scheduling
    # A list of factors has no use for the window.
    for words in (["--factors", "a.json"], ["--ladder", "file:a.json"]):
        args = taken(*words)
        assert args.ladder == "file:a.json" and args.native_window is None


def test_a_file_of_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPESWITCH_FACTORS", "a.json")
    assert taken().ladder == "file:a.json" and taken("--ladder", "auto").ladder == "auto"


def test_a_wrong_one_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROGRAM and "ROPESWITCH_LADDER" not in environment()
    monkeypatch.setenv("ROPESWITCH_LADDER", "yarn:big")
    assert refused("serve", "--port", "0").startswith("ROPESWITCH_LADDER: 'big' must be a whole number of tokens")
    monkeypatch.delenv("ROPESWITCH_LADDER")
    monkeypatch.setenv("ROPESWITCH_LADER", "auto")
    assert refused("serve", "--port", "0").startswith("ROPESWITCH_LADER: unknown variable; allowed: ")


def test_a_variable_that_the_model_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPESWITCH_LADDER", "yarn:64k")
    message = refused("serve", str(BUNDLED_MODEL), "--port", "0")
    assert (
        message.startswith("ROPESWITCH_LADDER: 'yarn:64k' would replace the LongRoPE factors")
        and "--ladder" not in message
    )
