"""Starts that are refused: exit code 2 and one line on standard error with what is wrong, the value, and what to do."""

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import ropeswitch.server
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.cli import main
from tests.exactness import checkpoints
from tests.exactness.checkpoints import ladder_file
from tests.server.checkpoint import MAXIMUM
from tests.server.running import ENGINE, FORKED, START_SECONDS, running, started

PAIRS = 16
# What the user typed after `ropeswitch serve`, and parts of the answer. The fixture `files` has what the names stand for.
EARLY: dict[str, tuple[str, list[str]]] = {
    "vLLM's flag": ("--max-modl-len 3", ["--max-modl-len: unknown flag; did you mean --max-model-len or --max-log-len?"]),
    "our flag": ("--laddr yarn", ["--laddr: unknown flag; did you mean --ladder?"]),
    "no flag like it": ("--zzzqqq", ["--zzzqqq: unknown flag; ropeswitch serve --help=all lists every flag"]),
    "config with an equals sign": ("--config=a.yaml", ["--config=a.yaml: vLLM ignores this form; write --config FILE"]),
    "flag without its value": ("--ladder", ["--ladder: expected one argument"]),
    "value out of range": ("--body-timeout -0.5", ["--body-timeout: '-0.5' must be a number of seconds above 0"]),
    "ladder with a wrong length": ("{model} --ladder yarn:long", ["--ladder", "long"]),
    "two ladders": ("{model} --ladder yarn --factors f.json", ["--factors: 'f.json' and --ladder 'yarn'", "give one"]),
    "window of no length": ("{model} --native-window x", ["--native-window: 'x'", "k"]),
    "no factor file": ("{model} --factors {folder}/none.json", ["none.json", "does not exist"]),
    "angles typo": ("{model} --rope-angles fast", ["--rope-angles: invalid choice: 'fast'", "'exact', 'hf'"]),
    "mistyped folder": ("{folder}/mdoel", ["MODEL: there is no folder '{folder}/mdoel'"]),
    "folder as a flag": ("--model {folder}", ["MODEL: the folder '{folder}' has no config.json"]),
    "home of nobody": ("~nobody-has-this-name/model", ["MODEL: there is no folder '~nobody-has-this-name/model'"]),
    "config that is no JSON": ("{folder}/broken", ["MODEL: '{folder}/broken/config.json' is not valid JSON"]),
    "GGUF file": ("{folder}/model.gguf", ["MODEL: '{folder}/model.gguf' is a file", "GGUF", "folder"]),
}  # fmt: skip
# vLLM's parser or configs refuse these, in their own words, or they need the model's config.
LATE: dict[str, tuple[str, list[str]]] = {
    "KV dtype typo": ("{model} --kv-cache-dtype fp9", ["--kv-cache-dtype: ", "'fp9'", "fp8"]),
    "no sequences": ("{model} --max-num-seqs 0", ["--max-num-seqs: 0: Input should be greater than or equal to 1"]),
    "JSON that is no object": ("{model} --hf-overrides 3", ["--hf-overrides: '3' must be a JSON object"]),
    "override that is no object": ('{model} --hf-overrides {"rope_scaling":3}', ["--hf-overrides: rope_scaling: 3 must"]),
    "wrong value in JSON": ("{model} -cc.mode 9", ["--compilation-config/-cc: ", "Input should be 0, 1, 2 or 3"]),
    "no config file": ("{model} --config {folder}/n.yaml", ["--config: '{folder}/n.yaml' cannot be read: "]),
    "config file with a typo": ("{model} --config {folder}/c.yaml", ["unrecognized arguments: --prt 8000"]),
    "config file at odds": ("{model} --config {folder}/d.yaml", ["--step-latency-target: needs --length-aware-sch"]),
    "chunks off": ("{model} --no-enable-chunked-prefill", ["--no-enable-chunked-prefill: needs --no-length"]),
    "two ways to size steps": (
        "{model} --long-prefill-token-threshold-adaptive --long-prefill-token-threshold 64",
        ["--long-prefill-token-threshold-adaptive: needs --no-length"],
    ),
    "tool parser typo": (
        "{model} --enable-auto-tool-choice --tool-call-parser hermse",
        ["invalid tool call parser: hermse", "hermes"],
    ),
    "socket in no folder": ("{model} --uds {folder}/none/s", ["--uds: [Errno 2] No such file or directory"]),
    "port in use": ("{model} --host 127.0.0.1 --port {port}", ["--host, --port, --uds: [Errno 98] Address already in use"]),
    "port out of range": ("{model} --port 80000", ["--host, --port, --uds: ", "0-65535"]),
    "length over the ladder": ("{model} --max-model-len 9M", ["--max-model-len: 9437184 exceeds", "--factors FILE"]),
    "ranks and heads": ("{model} --tensor-parallel-size 3", ["must be divisible by tensor parallel size"]),
    "block size of GPUs": ("{model} --block-size 16", ["--block-size: 16 must be a multiple of 32", "leave it out"]),
    "gRPC": ("{model} --grpc", ["--grpc"]),
    "sequences over the memory": (
        "{model} --max-num-seqs 1000000000 --kv-cache-memory-bytes 64M",
        ["--max-num-seqs: 1000000000 does not fit: 1000000000 sequences of ", "of host memory", "use at most"],
    ),
    "KV cache over the memory": ("{model} --kv-cache-memory-bytes 900T", ["--kv-cache-memory-bytes: ", "memory is free"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Files to point at by mistake, and a port in use."""
    # A short name: messages shorten long values.
    tmp_path = tmp_path_factory.mktemp("f")
    for name, text in (("broken", "{'a': 1}"), ("model", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "c.yaml").write_text("prt: 8000\n")
    (tmp_path / "d.yaml").write_text("length-aware-scheduling: false\nstep-latency-target: 0.25\n")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield {"{model}": str(BUNDLED_MODEL), "{folder}": str(tmp_path), "{port}": str(listening.getsockname()[1])}


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
    port = [] if "--port" in typed else ["--port", "0"]
    line = refusal(*(filled(word, files) for word in typed.split(" ")), *port)
    assert len(line) < 1500 and all(filled(part, files) in line for part in expected), line


def test_flags_beside_length_aware_scheduling_are_served(refusal: Any) -> None:
    """The next thing that is wrong is what the message is about."""
    for flags in (
        "--step-latency-target 60 --long-prefill-token-threshold 64 --enable-chunked-prefill",
        "--no-long-prefill-token-threshold-adaptive --step_latency_target=1e-3",
        "--no-length-aware-scheduling --no-enable-chunked-prefill --long-prefill-token-threshold-adaptive",
    ):
        assert refusal(str(BUNDLED_MODEL), *flags.split(), "--max-model-len", "9M").startswith("--max-model-len: ")


def test_a_missing_compiler_is_named_unless_nothing_is_compiled(
    refusal: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = refusal(str(checkpoint), "--kv-cache-memory-bytes", "64M")
    assert message.startswith("CXX: 'no-such-compiler' was not found") and "--enforce-eager" in message
    for flag in ("--enforce-eager", "-O0", "-cc.mode=0"):
        assert refusal(str(checkpoint), flag, "--kv-cache-memory-bytes", "900T").startswith("--kv-cache-memory-bytes")


# A whole config, or changes to a Phi-3's, and what the message says besides the file or folder.
WRONG_CONFIGS: list[tuple[bytes | dict[str, Any], str]] = [
    (b'{"model_type": "no-such-model"}', "no-such-model"),
    # The models' own code reads a config, and raises what it likes.
    (b'{"model_type": ["x"]}', "TypeError: "),
    (b"[]", "must hold a JSON object, found []"),
    (b"[" * 100_000, "nested too deeply"),
    (b"\xff", "is not UTF-8 text"),
    ({"short_factor": [1.0] * (PAIRS - 1)}, f"short_factor field must have length {PAIRS}, got {PAIRS - 1}"),
    ({"short_factor": None}, "rope_parameters.short_factor: None must be a list of numbers"),
    ({"partial_rotary_factor": "x"}, "rope_parameters.partial_rotary_factor: 'x' must be a number"),
    ({"rope_parameters": "abc"}, "rope_parameters: 'abc' must be a JSON object"),
    ({"num_attention_heads": 0}, "num_attention_heads: 0 must be a whole number of at least 1"),
    ({"rope_theta": 1.0}, "rope_theta: 1.0, but rope_parameters.rope_theta: 10000.0"),
    ({"intermediate_size": "x"}, "'intermediate_size' expected int, got str (value: 'x')"),
]


@pytest.mark.parametrize(("wrong", "expected"), WRONG_CONFIGS, ids=lambda value: str(value)[:40])
def test_a_config_that_cannot_be_used_is_named_with_its_field(
    refusal: Any, checkpoint: Path, tmp_path: Path, wrong: bytes | dict[str, Any], expected: str
) -> None:
    if isinstance(wrong, dict):
        config = json.loads((checkpoint / "config.json").read_text())
        for field, value in wrong.items():
            (config["rope_parameters"] if field.endswith("_factor") else config)[field] = value
        wrong = json.dumps(config).encode()
    (tmp_path / "config.json").write_bytes(wrong)
    message = refusal(str(tmp_path))
    assert message.startswith("MODEL: ") and str(tmp_path) in message and expected in message


def test_a_factor_file_that_does_not_fit_the_model_is_named(refusal: Any, checkpoint: Path, tmp_path: Path) -> None:
    model, path = str(checkpoint), tmp_path / "factors.json"
    one: dict[str, Any] = {"name": "only", "max_length": 128, "factors": [1.0] * PAIRS}
    sets = [one, one | {"name": "b", "max_length": 100}]
    assert "sets[1].max_length: 100" in refusal(model, "--factors", str(ladder_file(path, sets)))
    sets = [one | {"factors": [1.0] * (PAIRS - 1)}]
    assert f"{PAIRS - 1} factors" in refusal(model, "--factors", str(ladder_file(path, sets)))
    ladder_file(path, [one])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 5e5}))
    message = refusal(model, "--factors", str(path))
    assert message.startswith("rope_theta:") and "500000" in message and "10000" in message


@pytest.mark.parametrize(
    ("own", "overrides", "expected"),
    [
        # Nothing says whether a Llama was trained with it.
        (1e4, {"rope_theta": 1e4}, ["--ladder:", "--ladder none", "--ladder yarn"]),
        (5e6, {}, ["--hf-overrides:", "drops rope_theta 5000000", '"rope_theta": 5000000', "--max-model-len LENGTH"]),
    ],
)
def test_overrides_that_may_not_be_the_model_s_are_named_with_a_way_out(
    refusal: Any, tmp_path: Path, own: float, overrides: dict[str, float], expected: list[str]
) -> None:
    checkpoints.llama(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": own})
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64} | overrides
    message = refusal(str(tmp_path), "--hf-overrides", json.dumps({"rope_parameters": yarn}))
    assert message.startswith(expected[0]) and all(part in message for part in expected)


def failed(log: Path, code: int, *arguments: str) -> str:
    """The message of a server's own process that ends with this exit code."""
    with log.open("wb") as output, started(["serve", *arguments, "--port", "0"], output, FORKED) as process:
        assert process.wait(START_SECONDS) == code, log.read_text()
    printed = log.read_text()
    [line] = [line for line in printed.splitlines() if line.startswith("ropeswitch: error: ")]
    assert code == 1 or "Traceback" not in printed, printed
    return line.removeprefix("ropeswitch: error: ")


@pytest.mark.full
def test_a_cache_too_small_names_the_length_that_auto_takes(checkpoint: Path, tmp_path: Path) -> None:
    small = [str(checkpoint), *ENGINE, "--kv-cache-memory-bytes", "600000"]
    message = failed(tmp_path / "log", 2, *small)
    assert message.startswith("To serve at least one request") and f"({MAXIMUM})" in message
    largest = int(message.split("estimated maximum model length is ")[1].split(".")[0])
    with running(tmp_path, *small, "--max-model-len", "auto") as server:
        assert server.get("/v1/rope").json["max_model_len"] == largest
        body = {"model": str(checkpoint), "prompt": [5] * (largest - 2), "max_tokens": 2}
        answer = server.post("/v1/completions", body)
        assert (answer.status, answer.sets) == (200, "long"), answer.text


@pytest.mark.full
def test_a_start_that_fails_ends_with_its_root_cause(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    message = failed(tmp_path / "log", 1, str(tmp_path / "cut"), *ENGINE)
    assert message.startswith("the server did not start: SafetensorError: ")
