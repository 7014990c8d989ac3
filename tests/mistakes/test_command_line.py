"""Plausible mistakes on the command line: one line, exit code 2, what is wrong, the value, what is allowed, what to do."""

import json
import socket
import sys
from collections.abc import Iterator

import pytest

import ropeswitch.server
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.cli import main
from tests.server.front.certificates import certificate

MODEL = str(BUNDLED_MODEL)

# What the user typed after `ropeswitch serve`, and parts of the answer. {folder} holds the files that `files` makes.
EARLY: dict[str, tuple[str, list[str]]] = {
    "mistyped flag": (f"{MODEL} --max-modl-len 4096", ["--max-modl-len: unknown flag", "did you mean --max-model-len"]),
    "mistyped flag of ours": (f"{MODEL} --laddr yarn", ["--laddr: unknown flag", "did you mean --ladder"]),
    "port in use": (
        f"{MODEL} --host 127.0.0.1 --port {{port}}",
        ["--port: {port} on 127.0.0.1", "in use", "choose another"],
    ),
    "host that is not here": (
        f"{MODEL} --host no.such.host.invalid",
        ["no.such.host.invalid", "choose another --port"],
    ),
    "unknown ladder": (f"{MODEL} --ladder yan", ["--ladder", "'yan'", "yarn"]),
    "ladder with a wrong length": (f"{MODEL} --ladder yarn:long", ["--ladder", "long"]),
    "two ladders": (f"{MODEL} --ladder yarn --factors f.json", ["--factors: 'f.json' and --ladder 'yarn'", "give one"]),
    "no factor file": (f"{MODEL} --factors {{folder}}/none.json", ["none.json", "does not exist"]),
    "factor file that is no JSON": (f"{MODEL} --factors {{folder}}/text.txt", ["text.txt", "JSON"]),
    "angles typo": (f"{MODEL} --rope-angles fast", ["--rope-angles: invalid choice: 'fast'", "'exact', 'hf'"]),
    "no such folder": ("{folder}/none", ["MODEL: there is no folder '{folder}/none'"]),
    "mistyped folder": ("{folder}/mdoel", ["there is no folder", "did you mean {folder}/model?"]),
    "folder without a config": ("{folder}/empty", ["MODEL: the folder '{folder}/empty' has no config.json"]),
    "config that is no JSON": ("{folder}/broken", ["MODEL: '{folder}/broken/config.json' is not valid JSON"]),
    "GGUF file": ("{folder}/model.gguf", ["MODEL: '{folder}/model.gguf' is a file", "GGUF", "folder"]),
    "weights file": ("{folder}/text.txt", ["MODEL: '{folder}/text.txt' is a file", "a folder with a config.json"]),
    "no key file": (f"{MODEL} --api-key-file {{folder}}/none", ["--api-key-file: '{folder}/none' cannot be read"]),
    "contradiction": (
        f"{MODEL} --no-length-aware-scheduling --step-latency-target 1",
        ["--step-latency-target: 1 would be ignored with --no-length-aware-scheduling", "leave one"],
    ),
    "prompts in no log": (
        f"{MODEL} --access-log off --log-prompts",
        ["--log-prompts: would be ignored with --access-log"],
    ),
    "seconds below zero": (f"{MODEL} --body-timeout -1", ["--body-timeout: '-1' must be a number of seconds above 0"]),
}
# vLLM's parser or configs refuse these, in their own words, or they need the model's config.
LATE: dict[str, tuple[str, list[str]]] = {
    "second model": (f"{MODEL} other", ["unrecognized arguments: other"]),
    "KV dtype typo": (f"{MODEL} --kv-cache-dtype fp9", ["--kv-cache-dtype: invalid choice: 'fp9'", "fp8"]),
    "no sequences": (f"{MODEL} --max-num-seqs 0", ["--max-num-seqs: 0: Input should be greater than or equal to 1"]),
    "no ranks": (f"{MODEL} --tensor-parallel-size 0", ["--tensor-parallel-size: 0: Input should be greater than"]),
    "length zero": (f"{MODEL} --max-model-len 0", ["max_model_len must be a positive integer"]),
    "JSON that is no object": (f"{MODEL} --hf-overrides 3", ["--hf-overrides: '3' must be a JSON object"]),
    "JSON typo": (f"{MODEL} --hf-overrides {{{{a:1", ["--hf-overrides: "]),
    "wrong value in JSON": (f"{MODEL} -cc.mode 9", ["--compilation-config/-cc: ", "Input should be 0, 1, 2 or 3"]),
    "no config file": (f"{MODEL} --config {{folder}}/n.yaml", ["--config: '{folder}/n.yaml' cannot be read: "]),
    "config file that is a list": (
        f"{MODEL} --config {{folder}}/l.yaml",
        ["--config: '{folder}/l.yaml' cannot be read"],
    ),
    "config file with a typo": (f"{MODEL} --config {{folder}}/c.yaml", ["unrecognized arguments: --prt 8000"]),
    "no chat template": (f"{MODEL} --chat-template {{folder}}/t.jinja", ["{folder}/t.jinja", "doesn't exist"]),
    "tools without a parser": (f"{MODEL} --enable-auto-tool-choice", ["requires --tool-call-parser"]),
    "tool parser typo": (f"{MODEL} --tool-call-parser hermse", ["invalid tool call parser: hermse", "hermes"]),
    "quantization typo": (f"{MODEL} --quantization fp9", ["Unknown quantization method: fp9", "fp8"]),
    "socket in no folder": (f"{MODEL} --uds {{folder}}/none/s", ["--uds: [Errno 2] No such file or directory"]),
    "key with a space": (f"{MODEL} --api-key a\tb", ["--api-key: a key must be"]),
    "certificate that is text": (
        f"{MODEL} --ssl-certfile {{folder}}/text.txt",
        ["--ssl-certfile", "Use PEM files"],
    ),
    "certificate without its key": (f"{MODEL} --ssl-certfile {{cert}}", ["--ssl-certfile", "--ssl-keyfile"]),
    "another key": (
        f"{MODEL} --ssl-certfile {{cert}} --ssl-keyfile {{other}}",
        ["{cert}", "{other}", "MISMATCH"],
    ),
    "length over the ladder": (
        f"{MODEL} --max-model-len 9M",
        ["--max-model-len: 9437184 exceeds", "use at most", "--factors FILE"],
    ),
    "limit of a set that is not": (
        f"{MODEL} --max-queued-requests middle=5",
        ["--max-queued-requests: middle=5", "r1, r2"],
    ),
    "factors of another model": (f"{MODEL} --factors {{folder}}/other.json", ["2 factors", "16"]),
    "heads that ranks cannot share": (
        f"{MODEL} --tensor-parallel-size 3",
        ["attention heads (2) must be divisible by tensor parallel size (3)"],
    ),
    "block size of GPUs": (f"{MODEL} --block-size 16", ["--block-size: 16 must be a multiple of 32", "leave it out"]),
    "connector without the set in its keys": (
        f'{MODEL} --kv-transfer-config {{{{"kv_connector":"ExampleConnector","kv_role":"kv_both"}}}}',
        ["kv_connector: 'ExampleConnector': its keys are made of tokens alone", "allowed: OffloadingConnector, "],
    ),
    "KV cache over the memory": (
        f"{MODEL} --kv-cache-memory-bytes 900T",
        ["--kv-cache-memory-bytes: ", "of memory is free", "use at most"],
    ),
}


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Files to point at by mistake, and a port in use."""
    # A short name: messages shorten long values.
    tmp_path = tmp_path_factory.mktemp("f")
    for name in ("empty", "broken", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "config.json").write_text("{'a': 1}")
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "text.txt").write_text("hello\n")
    (tmp_path / "c.yaml").write_text("prt: 8000\n")
    (tmp_path / "l.yaml").write_text("- port\n")
    factors = json.loads((BUNDLED_MODEL / "factors.json").read_text())
    factors["sets"] = [{**each, "factors": [1.0, 1.0]} for each in factors["sets"]]
    (tmp_path / "other.json").write_text(json.dumps(factors))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = str(listening.getsockname()[1])
        cert, _ = certificate(tmp_path)
        _, other = certificate(tmp_path / "other")
        yield {"folder": str(tmp_path), "port": port, "cert": cert, "other": other}


def answer(capsys: pytest.CaptureFixture[str], typed: str, files: dict[str, str]) -> tuple[str, list[str]]:
    """The one line of the refusal, and everything on standard error."""
    code = main(["serve", *(word.format(**files) for word in typed.split(" "))])
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("ropeswitch: error: ")]
    assert code == 2 and len(errors) == 1 and not any("Traceback" in line for line in lines), lines
    assert len(errors[0]) < 1500
    return errors[0], lines


def check(line: str, expected: list[str], files: dict[str, str]) -> None:
    parts = [part.format(**files) for part in expected]
    assert all(part in line for part in parts), line


@pytest.mark.parametrize("name", EARLY)
def test_a_mistake_is_found_before_vllm_is_imported(
    name: str, files: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # An import of it now fails, also where an earlier test has imported it.
    monkeypatch.delattr(ropeswitch.server, "vllm_adapter", raising=False)
    monkeypatch.setitem(sys.modules, "ropeswitch.server.app.vllm_adapter", None)
    typed, expected = EARLY[name]
    line, lines = answer(capsys, typed, files)
    assert lines == [line]
    check(line, expected, files)


@pytest.mark.parametrize("name", LATE)
def test_a_mistake_is_found_before_the_engine_starts(
    name: str, files: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    monkeypatch.setattr("logging.raiseExceptions", False)
    typed, expected = LATE[name]
    # Another process may have a server at the default port.
    line, _ = answer(capsys, typed if "--port" in typed else f"{typed} --port 0", files)
    check(line, expected, files)
