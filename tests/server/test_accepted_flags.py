"""The arguments with which ``ropeswitch serve`` starts vLLM's server."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.errors import UsageError
from ropeswitch.server.flags.memory import Memory
from ropeswitch.server.start.console import Console


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
    def run(_: Any, args: Any, console: Console) -> None:
        raise UsageError(str(console.path is not None))

    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("VLLM_LOGGING_LEVEL", level)
    monkeypatch.setattr("ropeswitch.server.serve._run", run)
    assert refusal(str(checkpoint), *flags) == str(held)


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
