"""Flags that must be refused: exit code 2 and one line on standard error that names the flag and the value."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.checkpoint import MAXIMUM


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--hf-overrides", "3", "--hf-overrides: '3' must be a JSON object"),
        ("--hf-overrides", '{"rope_scaling": 3}', "--hf-overrides: rope_scaling: 3 must be a JSON object"),
        ("--hf-overrides", '{"head_dim": "x"}', "--hf-overrides: head_dim: 'x' must be a whole number"),
        ("--speculative-config", "3", "--speculative-config: 3 must be a JSON object"),
        ("--speculative-config", "[]", "--speculative-config: [] must be a JSON object"),
        ("--additional-config", "3", "--additional-config: '3' must be a JSON object"),
    ],
)
def test_values_that_the_parser_lets_through(
    refusal: Any, checkpoint: Path, flag: str, value: str, expected: str
) -> None:
    assert expected in refusal(str(checkpoint), flag, value)


def test_flags(refusal: Any, checkpoint: Path) -> None:
    model = str(checkpoint)
    assert "--grpc" in refusal(model, "--grpc")
    many = refusal(model, "--max-num-seqs", "1000000000", "--kv-cache-memory-bytes", "64M")
    assert many.startswith("--max-num-seqs: 1000000000 does not fit: 1000000000 sequences of ")
    assert "of host memory, of which" in many and "use at most" in many


SECONDS = "must be a number of seconds above 0 and at most 60"


@pytest.mark.parametrize("value", ["abc", "nan", "inf", "0", "-1", "-0.5", "60.01", "1e400", ""])
def test_step_latency_targets(refusal: Any, checkpoint: Path, tmp_path: Path, value: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"step-latency-target: {json.dumps(value)}\n")
    assert refusal(str(checkpoint), "--step-latency-target", value) == f"--step-latency-target: {value!r} {SECONDS}"
    if not value.startswith("-"):
        assert refusal(str(checkpoint), "--config", str(config)) == f"--step-latency-target: {value!r} {SECONDS}"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"length-aware-scheduling": False, "step-latency-target": 0.25},
            "--step-latency-target: 0.25 would be ignored with --no-length-aware-scheduling",
        ),
        (
            {"long-prefill-token-threshold-adaptive": True, "long-prefill-token-threshold": 64},
            "--long-prefill-token-threshold-adaptive: True would be ignored",
        ),
        ({"enable-chunked-prefill": False}, "--enable-chunked-prefill: False turns off the chunks"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("from_file", [False, True], ids=["flag", "file"])
def test_flags_against_length_aware_scheduling(
    refusal: Any, checkpoint: Path, tmp_path: Path, values: dict[str, Any], expected: str, from_file: bool
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    flags: list[str] = []
    for name, value in values.items():
        flags += [f"--{'no-' if value is False else ''}{name}", *([] if isinstance(value, bool) else [str(value)])]
    if from_file:
        flags = ["--config", str(config)]
    message = refusal(str(checkpoint), *flags)
    assert message.startswith(expected) and "--no-length-aware-scheduling" in message


def test_flags_beside_length_aware_scheduling(refusal: Any, checkpoint: Path) -> None:
    """What is not refused: the next thing that is wrong is what the message is about."""
    late = ["--max-model-len", str(MAXIMUM + 1)]
    for flags in (
        ["--step-latency-target", "60", "--long-prefill-token-threshold", "64", "--enable-chunked-prefill"],
        ["--no-long-prefill-token-threshold-adaptive", "--step_latency_target=1e-3"],
        ["--no-length-aware-scheduling", "--no-enable-chunked-prefill", "--long-prefill-token-threshold-adaptive"],
    ):
        assert refusal(str(checkpoint), *flags, *late).startswith("--max-model-len: ")


def test_a_compiler_that_is_missing(refusal: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(checkpoint)
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = refusal(model, "--kv-cache-memory-bytes", "64M")
    assert message.startswith("CXX: 'no-such-compiler' was not found") and "--enforce-eager" in message
    # It compiles nothing, so the next thing that is wrong is what the message is about.
    assert refusal(model, "--enforce-eager", "--kv-cache-memory-bytes", "900T").startswith("--kv-cache-memory-bytes")
    assert refusal(model, "-O0", "--kv-cache-memory-bytes", "900T").startswith("--kv-cache-memory-bytes")
