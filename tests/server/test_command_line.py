"""Plausible mistakes on the command line: one line, exit code 2, what is wrong, the value, what is allowed, what to do."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import ropeswitch.server
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.cli import main
from tests.server.checkpoint import MAXIMUM

# What the user typed after `ropeswitch serve`, and parts of the answer. The fixture `files` has what the names stand for.
EARLY: dict[str, tuple[str, list[str]]] = {
    "ladder with a wrong length": ("{model} --ladder yarn:long", ["--ladder", "long"]),
    "two ladders": ("{model} --ladder yarn --factors f.json", ["--factors: 'f.json' and --ladder 'yarn'", "give one"]),
    "no factor file": ("{model} --factors {folder}/none.json", ["none.json", "does not exist"]),
    "angles typo": ("{model} --rope-angles fast", ["--rope-angles: invalid choice: 'fast'", "'exact', 'hf'"]),
    "mistyped folder": ("{folder}/mdoel", ["there is no folder", "did you mean {folder}/model?"]),
    "config that is no JSON": ("{folder}/broken", ["MODEL: '{folder}/broken/config.json' is not valid JSON"]),
    "GGUF file": ("{folder}/model.gguf", ["MODEL: '{folder}/model.gguf' is a file", "GGUF", "folder"]),
    "prompts in no log": (
        "{model} --access-log off --log-prompts",
        ["--log-prompts: would be ignored with --access-log"],
    ),
}
# vLLM's parser or configs refuse these, in their own words, or they need the model's config.
LATE: dict[str, tuple[str, list[str]]] = {
    "KV dtype typo": ("{model} --kv-cache-dtype fp9", ["--kv-cache-dtype: invalid choice: 'fp9'", "fp8"]),
    "no sequences": ("{model} --max-num-seqs 0", ["--max-num-seqs: 0: Input should be greater than or equal to 1"]),
    "JSON that is no object": ("{model} --hf-overrides 3", ["--hf-overrides: '3' must be a JSON object"]),
    "wrong value in JSON": ("{model} -cc.mode 9", ["--compilation-config/-cc: ", "Input should be 0, 1, 2 or 3"]),
    "no config file": ("{model} --config {folder}/n.yaml", ["--config: '{folder}/n.yaml' cannot be read: "]),
    "config file with a typo": ("{model} --config {folder}/c.yaml", ["unrecognized arguments: --prt 8000"]),
    "tool parser typo": ("{model} --tool-call-parser hermse", ["invalid tool call parser: hermse", "hermes"]),
    "quantization typo": ("{model} --quantization fp9", ["Unknown quantization method: fp9", "fp8"]),
    "socket in no folder": ("{model} --uds {folder}/none/s", ["--uds: [Errno 2] No such file or directory"]),
    "length over the ladder": ("{model} --max-model-len 9M", ["--max-model-len: 9437184 exceeds", "--factors FILE"]),
    "heads that ranks cannot share": (
        "{model} --tensor-parallel-size 3",
        ["must be divisible by tensor parallel size"],
    ),
    "block size of GPUs": ("{model} --block-size 16", ["--block-size: 16 must be a multiple of 32", "leave it out"]),
    "override that is no object": (
        '{model} --hf-overrides {"rope_scaling":3}',
        ["--hf-overrides: rope_scaling: 3 must"],
    ),
    "draft that is no object": ("{model} --speculative-config []", ["--speculative-config: [] must be a JSON object"]),
    "settings that are no object": ("{model} --additional-config 3", ["--additional-config: '3' must be a JSON"]),
    "gRPC": ("{model} --grpc", ["--grpc"]),
    "sequences over the memory": (
        "{model} --max-num-seqs 1000000000 --kv-cache-memory-bytes 64M",
        ["--max-num-seqs: 1000000000 does not fit: 1000000000 sequences of ", "of host memory", "use at most"],
    ),
    "KV cache over the memory": (
        "{model} --kv-cache-memory-bytes 900T",
        ["--kv-cache-memory-bytes: ", "of memory is free"],
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files to point at by mistake."""
    # A short name: messages shorten long values.
    tmp_path = tmp_path_factory.mktemp("f")
    for name in ("broken", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "config.json").write_text("{'a': 1}")
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "c.yaml").write_text("prt: 8000\n")
    return {"{model}": str(BUNDLED_MODEL), "{folder}": str(tmp_path)}


def filled(text: str, files: dict[str, str]) -> str:
    for name, value in files.items():
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize("name", EARLY)
def test_a_mistake_is_found_before_vllm_is_imported(
    name: str, files: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # An import of it now fails, also where an earlier test has imported it.
    monkeypatch.delattr(ropeswitch.server, "vllm_adapter", raising=False)
    monkeypatch.setitem(sys.modules, "ropeswitch.server.app.vllm_adapter", None)
    typed, expected = EARLY[name]
    assert main(["serve", *(filled(word, files) for word in typed.split(" "))]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("ropeswitch: error: ") and len(line) < 1500
    assert all(filled(part, files) in line for part in expected), line


@pytest.mark.parametrize("name", LATE)
def test_a_mistake_is_found_before_the_engine_starts(name: str, files: dict[str, str], refusal: Any) -> None:
    typed, expected = LATE[name]
    # Another process may have a server at the default port.
    line = refusal(*(filled(word, files) for word in typed.split(" ")), "--port", "0")
    assert len(line) < 1500 and all(filled(part, files) in line for part in expected), line


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
        (
            {"step-latency-target": "nan"},
            "--step-latency-target: 'nan' must be a number of seconds above 0 and at most 60",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("from_file", [False, True], ids=["flag", "file"])
def test_a_config_file_is_checked_as_flags_are(
    refusal: Any, checkpoint: Path, tmp_path: Path, values: dict[str, Any], expected: str, from_file: bool
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    flags: list[str] = []
    for name, value in values.items():
        flags += [f"--{'no-' if value is False else ''}{name}", *([] if isinstance(value, bool) else [str(value)])]
    message = refusal(str(checkpoint), *(["--config", str(config)] if from_file else flags))
    assert message.startswith(expected)


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
    for flag in ("--enforce-eager", "-O0"):
        assert refusal(model, flag, "--kv-cache-memory-bytes", "900T").startswith("--kv-cache-memory-bytes")
