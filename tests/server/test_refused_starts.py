"""Starts that must be refused: exit code 2 and one line on standard error that names the field and the value."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.exactness import checkpoints
from tests.exactness.checkpoints import ladder_file
from tests.server.checkpoint import MAXIMUM
from tests.server.running import ENGINE, PROGRAM, environment, refused, running

PAIRS = 16


def a_set(**changes: Any) -> dict[str, Any]:
    return {"name": "only", "max_length": 128, "factors": [1.0] * PAIRS} | changes


def test_the_command_itself(tmp_path: Path) -> None:
    assert (
        refused("serve", str(tmp_path / "none"), command=PROGRAM) == f"MODEL: there is no folder '{tmp_path / 'none'}'"
    )
    assert "no-such-command" in refused("no-such-command", command=PROGRAM)


def test_a_model_type_that_is_unknown(refusal: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    assert "no-such-model" in refusal(str(tmp_path))


# Changes to a Phi-3's config, and what the message says besides the folder.
WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"rope": {"short_factor": [1.0] * (PAIRS - 1)}}, f"short_factor field must have length {PAIRS}, got {PAIRS - 1}"),
    ({"rope": {"short_factor": None}}, "rope_parameters.short_factor: None must be a list of numbers"),
    ({"rope_parameters": "abc"}, "rope_parameters: 'abc' must be a JSON object"),
    ({"max_position_embeddings": "x"}, "max_position_embeddings: 'x' must be a whole number"),
    (
        {"original_max_position_embeddings": "x"},
        "original_max_position_embeddings: 'x', but rope_parameters.original_max_position_embeddings: 256",
    ),
    ({"num_attention_heads": 0}, "num_attention_heads: 0 must be a whole number of at least 1"),
    ({"intermediate_size": "x"}, "'intermediate_size' expected int, got str (value: 'x')"),
]


@pytest.mark.parametrize(("changes", "expected"), WRONG_FIELDS, ids=lambda value: str(value)[:40])
def test_model_configs_with_a_wrong_field(
    refusal: Any, checkpoint: Path, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["rope_parameters"] |= changes.get("rope", {})
    config |= {key: value for key, value in changes.items() if key != "rope"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = refusal(str(tmp_path))
    assert message.startswith("MODEL: ") and str(tmp_path) in message and expected in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[]", "must hold a JSON object, found []"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "is not UTF-8 text"),
    ],
    ids=["list", "deep", "bytes"],
)
def test_model_configs_that_hold_no_object(refusal: Any, tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    message = refusal(str(tmp_path))
    assert message.startswith(f"MODEL: {str(tmp_path / 'config.json')!r}") and expected in message


def test_an_error_of_any_kind_in_a_config_is_one_line(
    refusal: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each model's own code reads its config, and raises what it likes."""

    def divides(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("vllm.transformers_utils.config.get_config", divides)
    assert (
        refusal(str(checkpoint)) == f"MODEL: cannot read the config of {str(checkpoint)!r}: ZeroDivisionError: by zero"
    )


def test_factor_files(refusal: Any, checkpoint: Path, tmp_path: Path) -> None:
    model, path = str(checkpoint), tmp_path / "factors.json"
    sets = [a_set(), a_set(name="b", max_length=100)]
    assert "sets[1].max_length: 100" in refusal(model, "--factors", str(ladder_file(path, sets)))
    sets = [a_set(factors=[1.0] * (PAIRS - 1))]
    assert f"{PAIRS - 1} factors" in refusal(model, "--factors", str(ladder_file(path, sets)))
    ladder_file(path, [a_set()])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 5e5}))
    message = refusal(model, "--factors", str(path))
    assert message.startswith("rope_theta:") and "500000" in message and "10000" in message


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def test_a_model_that_may_not_be_trained_with_its_rope(refusal: Any, tmp_path: Path) -> None:
    checkpoints.llama(tmp_path)
    overrides = json.dumps({"rope_parameters": YARN | {"rope_theta": 1e4}})
    # Nothing says whether a Llama was trained with it.
    message = refusal(str(tmp_path), "--hf-overrides", overrides)
    assert message.startswith("--ladder:") and "--ladder none" in message and "--ladder yarn" in message


def test_a_base_that_would_be_dropped(refusal: Any, tmp_path: Path) -> None:
    checkpoints.llama(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5e6})
    message = refusal(str(tmp_path), "--hf-overrides", json.dumps({"rope_parameters": YARN}), "--max-model-len", "256")
    assert message.startswith("--hf-overrides:") and "drops rope_theta 5000000" in message
    assert "--max-model-len LENGTH" in message and '"rope_theta": 5000000' in message


def test_a_model_without_torchvision(refusal: Any, tmp_path: Path) -> None:
    config = {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refusal(str(tmp_path)).startswith("MODEL: Qwen2VLForConditionalGeneration needs torchvision")


@pytest.mark.full
def test_a_cache_too_small_names_the_length_that_auto_takes(checkpoint: Path, tmp_path: Path) -> None:
    small = [str(checkpoint), *ENGINE, "--kv-cache-memory-bytes", "600000"]
    for more in (["--api-server-count", "2"], []):
        message = refused("serve", *small, "--port", "0", *more)
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
    command = [*PROGRAM, "serve", str(tmp_path / "cut"), *ENGINE, "--port", "0"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=400, check=False)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("ropeswitch: error: ")]
    assert done.returncode == 1 and 'File "' not in line, done.stderr
    assert line.startswith("ropeswitch: error: the server did not start: SafetensorError: ")
    assert "vllm/model_executor/" in line
