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
    "second model": (f"{MODEL} other", ["'other': unexpected argument after MODEL"]),
    "model named twice": (
        f"{MODEL} --model other",
        [f"--model: 'other' differs from MODEL {MODEL!r}", "give only one"],
    ),
    "port out of range": (f"{MODEL} --port 80000", ["--port: 80000 must be from 0 to 65535"]),
    "port in use": (
        f"{MODEL} --host 127.0.0.1 --port {{port}}",
        ["--port: {port} on 127.0.0.1", "in use", "choose another"],
    ),
    "host that is not here": (f"{MODEL} --host no.such.host.invalid", ["--host: 'no.such.host.invalid'"]),
    "KV dtype typo": (f"{MODEL} --kv-cache-dtype fp9", ["--kv-cache-dtype: 'fp9' must be", "fp8"]),
    "negative size": (f"{MODEL} --kv-cache-memory-bytes=-1", ["--kv-cache-memory-bytes: -1 must be at least 1", "1G"]),
    "negative sequences": (f"{MODEL} --max-num-seqs -4", ["--max-num-seqs: '-4' must be at least 1"]),
    "no ranks": (f"{MODEL} --tensor-parallel-size 0", ["--tensor-parallel-size: '0' must be at least 1"]),
    "memory in percent": (
        f"{MODEL} --gpu-memory-utilization 90",
        ["--gpu-memory-utilization: '90' must be", "at most 1"],
    ),
    "length zero": (f"{MODEL} --max-model-len 0", ["--max-model-len: 0 must be at least 1, or auto"]),
    "unknown ladder": (f"{MODEL} --ladder yan", ["--ladder", "'yan'", "yarn"]),
    "ladder with a wrong length": (f"{MODEL} --ladder yarn:long", ["--ladder", "long"]),
    "two ladders": (f"{MODEL} --ladder yarn --factors f.json", ["--factors: 'f.json' and --ladder 'yarn'", "give one"]),
    "no factor file": (f"{MODEL} --factors {{folder}}/none.json", ["none.json", "does not exist"]),
    "factor file that is no JSON": (f"{MODEL} --factors {{folder}}/text.txt", ["text.txt", "JSON"]),
    "angles typo": (f"{MODEL} --rope-angles fast", ["--rope-angles: 'fast' must be exact or hf"]),
    "no such folder": ("{folder}/none", ["MODEL: there is no folder '{folder}/none'"]),
    "mistyped folder": ("{folder}/mdoel", ["there is no folder", "did you mean {folder}/model?"]),
    "folder without a config": ("{folder}/empty", ["MODEL: the folder '{folder}/empty' has no config.json"]),
    "config that is no JSON": ("{folder}/broken", ["MODEL: '{folder}/broken/config.json' is not valid JSON"]),
    "GGUF file": ("{folder}/model.gguf", ["MODEL: '{folder}/model.gguf' is a file", "GGUF", "folder"]),
    "weights file": ("{folder}/text.txt", ["MODEL: '{folder}/text.txt' is a file", "a folder with a config.json"]),
    "name that is on no hub": ("no-such/model", ["MODEL: 'no-such/model' is not a local folder", "HF_HUB_OFFLINE"]),
    "tokenizer on no hub": (f"{MODEL} --tokenizer no/one", ["--tokenizer: 'no/one' is not a local folder"]),
    "JSON typo": (f"{MODEL} --hf-overrides {{{{a:1", ["--hf-overrides: '{a:1' must be a JSON object"]),
    "JSON flag without JSON": (
        f"{MODEL} --compilation-config fast",
        ["--compilation-config: 'fast' must be a JSON object"],
    ),
    "config file with a typo": (
        f"{MODEL} --config {{folder}}/c.yaml",
        ["--prt (in --config {folder}/c.yaml)", "--port"],
    ),
    "no key file": (f"{MODEL} --api-key-file {{folder}}/none", ["--api-key-file: '{folder}/none' cannot be read"]),
    "key with a space": (f"{MODEL} --api-key a\tb", ["--api-key: a key must be"]),
    "certificate that is text": (
        f"{MODEL} --ssl-certfile {{folder}}/text.txt",
        ["--ssl-certfile", "no PEM certificate"],
    ),
    "certificate without its key": (f"{MODEL} --ssl-certfile {{cert}}", ["--ssl-certfile", "--ssl-keyfile"]),
    "another key": (
        f"{MODEL} --ssl-certfile {{cert}} --ssl-keyfile {{other}}",
        ["{cert}", "{other}", "does not belong"],
    ),
    "no chat template": (
        f"{MODEL} --chat-template {{folder}}/t.jinja",
        ["--chat-template: there is no file '{folder}/t"],
    ),
    "tools without a parser": (
        f"{MODEL} --enable-auto-tool-choice",
        ["--enable-auto-tool-choice: needs --tool-call-parser"],
    ),
    "quantization typo": (f"{MODEL} --quantization fp9", ["--quantization: 'fp9' must be", "fp8", "did you mean"]),
    "name that is empty": (f"{MODEL} --served-model-name ", ["--served-model-name: '' must be a name"]),
    "no parser file": (f"{MODEL} --tool-parser-plugin {{folder}}/p.py", ["--tool-parser-plugin: there is no file"]),
    "no log config": (f"{MODEL} --log-config-file {{folder}}/l.json", ["--log-config-file: there is no file"]),
    "socket in no folder": (f"{MODEL} --uds {{folder}}/none/s", ["--uds: ", "there is no folder '{folder}/none'"]),
    "no generation config": (
        f"{MODEL} --generation-config ./none",
        ["--generation-config: './none' must be auto, vllm, or a folder"],
    ),
    "folder without a generation config": (
        f"{MODEL} --generation-config {{folder}}/empty",
        ["--generation-config: the folder '{folder}/empty' has no generation_config.json"],
    ),
    "no draft model": (
        f'{MODEL} --speculative-config {{{{"method":"eagle","model":"./none","num_speculative_tokens":3}}}}',
        ["--speculative-config: model: there is no folder './none'"],
    ),
    "no adapter": (f"{MODEL} --lora-modules a=/none", ["--lora-modules: a=/none: there is no folder '/none'"]),
    "adapter without a name": (f"{MODEL} --lora-modules adapter", ["--lora-modules: 'adapter' must be NAME=PATH"]),
    "folder that is no adapter": (f"{MODEL} --lora-modules a={{folder}}/empty", ["has no adapter_config.json"]),
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
# These need the model's config, which vLLM reads.
LATE: dict[str, tuple[str, list[str]]] = {
    "length over the ladder": (
        f"{MODEL} --max-model-len 9M",
        ["--max-model-len: 9437184 exceeds", "use at most", "--factors FILE"],
    ),
    "limit of a set that is not": (
        f"{MODEL} --max-queued-requests middle=5",
        ["--max-queued-requests: middle=5", "r1, r2"],
    ),
    "factors of another model": (f"{MODEL} --factors {{folder}}/other.json", ["2 factors", "16"]),
    "wrong value in JSON": (
        f"{MODEL} -cc.mode 9",
        ["--compilation-config: mode: 9 must be 0, 1, 2 or 3."],
    ),
    "heads that ranks cannot share": (
        f"{MODEL} --tensor-parallel-size 3",
        ["--tensor-parallel-size: 3 must divide the model's 2 attention heads"],
    ),
    "block size of GPUs": (f"{MODEL} --block-size 16", ["--block-size: 16 must be a multiple of 32", "leave it out"]),
    "template that is no Jinja": (
        f"{MODEL} --chat-template {{folder}}/broken.jinja",
        ["--chat-template: '{folder}/broken.jinja': line 2 is not valid Jinja: unexpected end of template"],
    ),
    "middleware that is not installed": (
        f"{MODEL} --middleware no.such.Thing",
        ["--middleware: 'no.such.Thing' cannot be imported: No module named 'no'", "PYTHONPATH"],
    ),
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
    (tmp_path / "broken.jinja").write_text("{% if messages %}\n{{ messages")
    (tmp_path / "c.yaml").write_text("prt: 8000\n")
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
    parts = [part if part.startswith("--hf") else part.format(**files) for part in expected]
    assert all(part in line for part in parts), line


@pytest.mark.parametrize("name", EARLY)
def test_a_mistake_is_found_before_vllm_is_imported(
    name: str, files: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # An import of it now fails, also where an earlier test has imported it.
    monkeypatch.delattr(ropeswitch.server, "vllm_adapter", raising=False)
    monkeypatch.setitem(sys.modules, "ropeswitch.server.vllm_adapter", None)
    typed, expected = EARLY[name]
    line, lines = answer(capsys, typed, files)
    assert lines == [line]
    check(line, expected, files)


@pytest.mark.parametrize("name", LATE)
def test_a_mistake_that_the_models_config_shows(
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
