"""Starts that must be refused: exit code 2 and one line on standard error that names the field and the value."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import vllm

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.cli import main
from ropeswitch.server.errors import UsageError
from ropeswitch.server.flags.memory import Memory
from ropeswitch.server.start.console import Console
from tests.exactness import checkpoints
from tests.exactness.checkpoints import ladder_file
from tests.server.checkpoint import MAXIMUM
from tests.server.running import COMMAND, ENGINE, environment, refused, running

PAIRS = 16


def a_set(**changes: Any) -> dict[str, Any]:
    return {"name": "only", "max_length": 128, "factors": [1.0] * PAIRS} | changes


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs ``ropeswitch serve`` in this process, where vLLM is loaded once for all tests, and gives its message."""
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # These starts need no compiler, and the machine may have none.
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    # vLLM's log handler keeps the captured stream of the test that imported it first.
    monkeypatch.setattr("logging.raiseExceptions", False)
    # vLLM reads a config that it cannot read once more, two seconds later.
    monkeypatch.setattr("vllm.transformers_utils.repo_utils.time.sleep", lambda _: None)

    def run(*arguments: str) -> str:
        assert main(["serve", *arguments]) == 2
        lines = capsys.readouterr().err.splitlines()
        messages = [line for line in lines if line.startswith("ropeswitch: error: ")]
        assert len(messages) == 1 and not any("Traceback" in line for line in lines), lines
        return messages[0].removeprefix("ropeswitch: error: ")

    return run


def test_the_command_itself(tmp_path: Path) -> None:
    assert refused("serve", str(tmp_path / "none")) == f"MODEL: there is no folder '{tmp_path / 'none'}'"
    assert "no-such-command" in refused("no-such-command")


def test_missing_or_broken_model_folders(refusal: Any, tmp_path: Path) -> None:
    assert "config.json" in refusal(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert "not valid JSON" in refusal(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    assert "no-such-model" in refusal(str(tmp_path))
    assert "no-such/model" in refusal("no-such/model")


# Changes to a Phi-3's config, and what the message says besides the folder.
WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"rope": {"short_factor": [1.0] * (PAIRS - 1)}}, f"short_factor field must have length {PAIRS}, got {PAIRS - 1}"),
    ({"rope": {"short_factor": None}}, "rope_parameters.short_factor: None must be a list of numbers"),
    ({"rope": {"long_factor": ["a"]}}, "rope_parameters.long_factor: ['a'] must be a list of numbers"),
    ({"rope": {"partial_rotary_factor": "x"}}, "rope_parameters.partial_rotary_factor: 'x' must be a number"),
    ({"rope_parameters": "abc"}, "rope_parameters: 'abc' must be a JSON object"),
    ({"rope_parameters": [1, 2]}, "rope_parameters: [1, 2] must be a JSON object"),
    ({"max_position_embeddings": "x"}, "max_position_embeddings: 'x' must be a whole number"),
    (
        {"original_max_position_embeddings": "x"},
        "'original_max_position_embeddings' expected int, got str (value: 'x')",
    ),
    ({"head_dim": "x"}, "head_dim: 'x' must be a whole number"),
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
        (b'"x"', "must hold a JSON object, found 'x'"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"\xff", "is not UTF-8 text"),
    ],
    ids=["list", "text", "deep-list", "deep-object", "bytes"],
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
        ("--model", "another", "--model: 'another' is not the MODEL"),
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
    assert "transformers" in refusal(model, "--model-impl", "transformers")
    draft = json.dumps({"method": "draft_model", "model": model, "num_speculative_tokens": 2})
    assert "'draft_model'" in refusal(model, "--speculative-config", draft)


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
        ({"enable-chunked-prefill": False}, "--enable-chunked-prefill: False forbids the chunks"),
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
        ([], (True, None)),
        (["--step-latency-target", "0.25"], (True, 0.25)),
        (["--no-length-aware-scheduling"], (False, None)),
    ],
)
def test_scheduling_flags_reach_the_engine(
    refusal: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], expected: tuple[bool, float]
) -> None:
    def run(_: Any, args: Any, *rest: Any) -> None:
        settings = args.additional_config["ropeswitch"]
        raise UsageError(f"{(settings['length_aware'], settings['step_latency_target'])}")

    monkeypatch.setattr("ropeswitch.server.serve._run", run)
    assert refusal(str(checkpoint), *flags) == str(expected)


@pytest.mark.parametrize(
    ("flags", "level", "held"),
    [
        ([], None, True),
        (["--verbose"], None, False),
        (["--logging-config.log_level", "DEBUG"], None, False),
        (["--enable-log-requests"], None, False),
        (["--headless"], None, False),
        ([], "ERROR", False),
    ],
)
def test_vllm_s_log_is_held_unless_it_is_asked_for(
    refusal: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], level: str | None, held: bool
) -> None:
    def run(_: Any, args: Any, told: Console) -> None:
        raise UsageError(str(told.path is not None))

    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("VLLM_LOGGING_LEVEL", level)
    monkeypatch.setattr("ropeswitch.server.serve._run", run)
    assert refusal(str(checkpoint), *flags) == str(held)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--max-body-bytes", "0"], "--max-body-bytes: '0' must be a number of bytes from 1"),
        (["--max-queued-tokens", "middle=5"], "--max-queued-tokens: middle=5: the factor sets are short, long"),
        (["--api-key-file", "none"], "--api-key-file: 'none' cannot be read: No such file or directory"),
        (["--api-key", "two words"], "--api-key: a key must be one or more printable ASCII characters"),
        (["--ssl-keyfile", "none"], "--ssl-keyfile: none would be ignored without --ssl-certfile"),
    ],
)
def test_flags_of_keys_and_limits(refusal: Any, checkpoint: Path, flags: list[str], expected: str) -> None:
    assert refusal(str(checkpoint), *flags).startswith(expected)


def test_without_a_model_the_bundled_one_is_served_with_its_own_factors(
    refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Any, args: Any, *rest: Any) -> None:
        sets = [each["name"] for each in args.additional_config["ropeswitch"]["sets"]]
        raise UsageError(f"{args.served_model_name} {sets} {args.kv_cache_memory_bytes}")

    monkeypatch.setattr("ropeswitch.server.serve._run", run)
    assert refusal() == f"['longrope-mini'] ['r1', 'r2', 'x64', 'x512'] {1 << 30}"


def test_the_bundled_model_by_its_path_is_the_bundled_model(
    refusal: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def run(_: Any, args: Any, *rest: Any) -> None:
        seen.append(args)
        raise UsageError("seen")

    monkeypatch.setattr("ropeswitch.server.serve._run", run)
    monkeypatch.chdir(BUNDLED_MODEL.parent)
    (tmp_path / "link").symlink_to(BUNDLED_MODEL)
    for argv in ([], ["longrope-mini"], [f"./{BUNDLED_MODEL.name}/"], [str(tmp_path / "link")]):
        assert refusal(*argv) == "seen"
    assert refusal("longrope-mini", "--ladder", "auto", "--kv-cache-memory-bytes", "64M") == "seen"
    first, *same, other = [(args.additional_config["ropeswitch"]["sets"], args.kv_cache_memory_bytes) for args in seen]
    assert all(each == first for each in same) and len(first[0]) == 4
    assert len(other[0]) == 2 and other[1] == 64 << 20


def test_what_does_not_fit_a_cpu(refusal: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(checkpoint)
    assert refusal(model, "--block-size", "16").startswith("--block-size: 16 must be a multiple of 32 on a CPU")
    message = refusal(model, "--kv-cache-memory-bytes", "900T")
    assert (
        message.startswith("--kv-cache-memory-bytes: ") and "of memory is free" in message and "give at most" in message
    )
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = refusal(model, "--kv-cache-memory-bytes", "64M")
    assert message.startswith("CXX: 'no-such-compiler' was not found") and "--enforce-eager" in message
    # It compiles nothing, so the next thing that is wrong is what the message is about.
    assert refusal(model, "--enforce-eager", "--kv-cache-memory-bytes", "900T").startswith("--kv-cache-memory-bytes")
    assert refusal(model, "-O0", "--kv-cache-memory-bytes", "900T").startswith("--kv-cache-memory-bytes")


def test_the_kv_cache_is_chosen_by_what_is_free(
    refusal: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Any, args: Any, *rest: Any) -> None:
        raise UsageError(str(args.kv_cache_memory_bytes))

    monkeypatch.setattr("ropeswitch.server.serve._run", run)
    monkeypatch.setattr("ropeswitch.server.flags.cpu.read_memory", lambda: Memory(total=64 << 30, free=6 << 30))
    assert int(refusal(str(checkpoint))) == pytest.approx(2 << 30, rel=1e-3)


@pytest.mark.parametrize("from_file", [False, True], ids=["flag", "file"])
def test_keys_and_limits_reach_the_server_and_nothing_else_does(
    refusal: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_file: bool
) -> None:
    seen: list[Any] = []

    def run(_: Any, args: Any, *rest: Any) -> None:
        seen.append(args)
        raise UsageError("seen")

    monkeypatch.setattr("ropeswitch.server.serve._run", run)
    monkeypatch.setenv("VLLM_API_KEY", "key-of-the-environment")
    keys = tmp_path / "metrics-keys"
    keys.write_text("key-of-another-scraper")
    values = {
        "max-queued-requests": ["7", "long=2"],
        "middleware": ["starlette.middleware.gzip.GZipMiddleware"],
        "metrics-key": "key-of-the-scraper",
        "metrics-key-file": str(keys),
    }
    flags: list[str] = []
    for name, value in values.items():
        flags += [f"--{name}", *([value] if isinstance(value, str) else value)]
    if from_file:
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps(values))
        flags = ["--config", str(config)]
    assert refusal(str(checkpoint), *flags) == "seen"
    [args] = seen
    assert args.ropeswitch_front.max_queued_requests == {None: 7, "long": 2}
    assert args.ropeswitch_front.key_digests and args.ropeswitch_front.metrics_digests
    assert args.ropeswitch_front.metrics_key_file == str(keys)
    assert args.middleware == ["starlette.middleware.gzip.GZipMiddleware", "ropeswitch.server.front.front.Front"]
    # Upstream's own middleware would come with a key in these.
    assert args.api_key is None and "VLLM_API_KEY" not in os.environ
    assert "key-of-the" not in repr(args)


def test_factor_files(refusal: Any, checkpoint: Path, tmp_path: Path) -> None:
    model, path = str(checkpoint), tmp_path / "factors.json"
    assert str(path) in refusal(model, "--factors", str(path))
    path.write_text("{")
    assert str(path) in refusal(model, "--factors", str(path))
    cases: list[tuple[list[dict[str, Any]], str]] = [
        ([a_set(factors=[1.0] * (PAIRS - 1))], f"{PAIRS - 1} factors"),
        ([a_set(factors=[1.0] * (PAIRS - 1) + [-1.0])], f"factors[{PAIRS - 1}]: -1.0"),
        ([a_set(factors=[1.0] * (PAIRS - 1) + [float("inf")])], "factor"),
        ([a_set(), a_set(name="b", max_length=100)], "sets[1].max_length: 100"),
    ]
    for sets, expected in cases:
        assert expected in refusal(model, "--factors", str(ladder_file(path, sets)))
    ladder_file(path, [a_set()])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 5e5}))
    message = refusal(model, "--factors", str(path))
    assert message.startswith("rope_theta:") and "500000" in message and "10000" in message


def test_models_with_the_wrong_rope(refusal: Any, tmp_path: Path) -> None:
    checkpoints.llama(tmp_path)
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    overrides = json.dumps({"rope_parameters": yarn})
    # Nothing says whether a Llama was trained with it.
    message = refusal(str(tmp_path), "--hf-overrides", overrides)
    assert message.startswith("--ladder:") and "--ladder none" in message and "--ladder yarn" in message
    overrides = json.dumps({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}})
    ladder = ladder_file(tmp_path / "ladder.json", [a_set()])
    assert "M-RoPE" in refusal(str(tmp_path), "--factors", str(ladder), "--hf-overrides", overrides)


@pytest.mark.full
def test_a_port_in_use(server: Any, checkpoint: Path) -> None:
    port = server.url.rsplit(":", 1)[1]
    assert "in use" in refused("serve", str(checkpoint), "--host", "127.0.0.1", "--port", port)


@pytest.mark.full
@pytest.mark.parametrize("more", [[], ["--api-server-count", "2"]])
def test_a_cache_too_small_names_the_length_that_auto_takes(checkpoint: Path, tmp_path: Path, more: list[str]) -> None:
    small = [str(checkpoint), *ENGINE[:-1], "600000", *more]
    message = refused("serve", *small, "--port", "0")
    assert message.startswith(f"max_model_len: one sequence of {MAXIMUM} tokens does not fit")
    assert "--max-model-len auto" in message
    largest = int(message.split("that fits is ")[1].split(",")[0])
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
    command = [str(COMMAND), "serve", str(tmp_path / "cut"), *ENGINE, "--port", "0"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=400, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ropeswitch: error: ")]
    assert done.returncode == 1 and len(lines) == 1, done.stderr
    assert lines[0].startswith("ropeswitch: error: the engine did not start: SafetensorError: "), lines
    assert "vllm/model_executor/" in lines[0] and 'File "' not in lines[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "method"),
    [("v1/core/kv_cache_utils.py", "generate_block_hash_extra_keys"), ("v1/engine/async_llm.py", "generate")],
)
def test_a_changed_upstream(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, method: str
) -> None:
    """A vLLM with one other method, in the engine and in the API server, stops the start."""
    installed = Path(vllm.__file__).parent
    copy = tmp_path / "vllm"
    shutil.copytree(installed, copy, copy_function=os.symlink)
    (copy / file).unlink()
    source = (installed / file).read_text()
    assert source.count(f"def {method}(") == 1
    (copy / file).write_text(source.replace(f"def {method}(", f"def {method}(  # another release"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    message = refused("serve", str(checkpoint), *ENGINE, "--port", "0")
    assert f".{method}: fingerprint" in message and "ropeswitch patches diff" in message
