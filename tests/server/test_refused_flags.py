"""Flags that must be refused: exit code 2 and one line on standard error that names the flag and the value."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.checkpoint import MAXIMUM


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--hf-overrides", "{", "--hf-overrides: '{' must be a JSON object"),
        ("--hf-overrides", "[]", "--hf-overrides: '[]' must be a JSON object"),
        ("--hf-overrides", "3", "--hf-overrides: '3' must be a JSON object"),
        ("--hf-overrides", '{"rope_scaling": 3}', "--hf-overrides: rope_scaling: 3 must be a JSON object"),
        ("--hf-overrides", '{"head_dim": "x"}', "--hf-overrides: head_dim: 'x' must be a whole number"),
        ("--speculative-config", "3", "--speculative-config: 3 must be a JSON object"),
        ("--speculative-config", "[]", "--speculative-config: [] must be a JSON object"),
        ("--additional-config", "3", "--additional-config: '3' must be a JSON object"),
        ("--chat-template", "/nope.jinja", "/nope.jinja"),
        ("--port", "99999", "--port: 99999 must be from 0 to 65535"),
        ("--port", "-1", "--port: -1 must be from 0 to 65535"),
        ("--model", "another", "--model: 'another' differs from MODEL"),
    ],
)
def test_values_that_the_parser_lets_through(
    refusal: Any, checkpoint: Path, flag: str, value: str, expected: str
) -> None:
    message = refusal(str(checkpoint), flag, value)
    assert expected in message
    if flag == "--model":
        assert repr(str(checkpoint)) in message


def test_flags(refusal: Any, checkpoint: Path) -> None:
    model = str(checkpoint)
    assert "--nope" in refusal(model, "--nope", "3")
    assert "--port" in refusal(model, "--port", "abc")
    assert "--rope-angles" in refusal(model, "--rope-angles", "about")
    assert refusal(model, "--max-model-len", str(MAXIMUM + 1)).startswith(
        f"max_model_len: {MAXIMUM + 1} exceeds {MAXIMUM}"
    )
    assert "--grpc" in refusal(model, "--grpc")
    assert "enable-auto-tool-choice" in refusal(model, "--enable-auto-tool-choice")
    many = refusal(model, "--max-num-seqs", "1000000000", "--kv-cache-memory-bytes", "64M")
    assert many.startswith("--max-num-seqs: 1000000000 does not fit: 1000000000 sequences of ")
    assert "of host memory, of which" in many and "use at most" in many
    draft = json.dumps({"model": model, "num_speculative_tokens": 2, "rejection_sample_method": "synthetic"})
    assert "'synthetic'" in refusal(model, "--speculative-config", draft)


SECONDS = "must be a number of seconds above 0 and at most 60"


@pytest.mark.parametrize("value", ["abc", "nan", "inf", "0", "-1", "-0.5", "-1e-3", "-inf", "60.01", "1e400", ""])
@pytest.mark.parametrize("from_file", [False, True], ids=["flag", "file"])
def test_step_latency_targets(refusal: Any, checkpoint: Path, tmp_path: Path, value: str, from_file: bool) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"step-latency-target: {json.dumps(value)}\n")
    flags = ["--config", str(config)] if from_file else ["--step-latency-target", value]
    source = f" (in --config {config})" if from_file else ""
    assert refusal(str(checkpoint), *flags) == f"--step-latency-target{source}: {value!r} {SECONDS}"


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
        assert refusal(str(checkpoint), *flags, *late).startswith("max_model_len")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--max-body-bytes", "0"], "--max-body-bytes: '0' must be a number of bytes from 1"),
        (
            ["--max-queued-tokens", "middle=5"],
            "--max-queued-tokens: middle=5: unknown factor set; use one of short, long",
        ),
        (["--api-key-file", "none"], "--api-key-file: 'none' cannot be read: No such file or directory"),
        (["--api-key", "two words"], "--api-key: a key must be one or more printable ASCII characters"),
        (["--ssl-keyfile", "none"], "--ssl-keyfile: none would be ignored without --ssl-certfile"),
    ],
)
def test_flags_of_keys_and_limits(refusal: Any, checkpoint: Path, flags: list[str], expected: str) -> None:
    assert refusal(str(checkpoint), *flags).startswith(expected)


def test_what_does_not_fit_a_cpu(refusal: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(checkpoint)
    assert refusal(model, "--block-size", "16").startswith("--block-size: 16 must be a multiple of 32 on a CPU")
    message = refusal(model, "--kv-cache-memory-bytes", "900T")
    assert (
        message.startswith("--kv-cache-memory-bytes: ") and "of memory is free" in message and "use at most" in message
    )
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = refusal(model, "--kv-cache-memory-bytes", "64M")
    assert message.startswith("CXX: 'no-such-compiler' was not found") and "--enforce-eager" in message
    # It compiles nothing, so the next thing that is wrong is what the message is about.
    assert refusal(model, "--enforce-eager", "--kv-cache-memory-bytes", "900T").startswith("--kv-cache-memory-bytes")
    assert refusal(model, "-O0", "--kv-cache-memory-bytes", "900T").startswith("--kv-cache-memory-bytes")
