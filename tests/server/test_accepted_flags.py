"""The arguments with which ``ropeswitch serve`` starts vLLM's server."""

import json
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.factors.errors import UsageError
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.start.log.console import Console
from ropeswitch.server.start.serve import plugin_names
from tests.exactness.checkpoints import factors, ladder_file

Started = Callable[..., Namespace]


@pytest.fixture
def started(refusal: Any, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Runs ``ropeswitch serve`` up to vLLM's start; gives the arguments for that, and ``held``, whether its log is held."""
    seen: list[Namespace] = []

    def run(_: Any, args: Namespace, console: Console) -> None:
        seen.append(Namespace(**vars(args), held=not console.whole))
        raise UsageError("seen")

    def start(*argv: str) -> Namespace:
        assert refusal(*argv) == "seen"
        return seen[-1]

    monkeypatch.setattr("ropeswitch.server.start.serve._run", run)
    return start


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            [],
            {"sse_keep_alive_interval": 15, "h11_max_incomplete_event_size": 65536, "enable_request_id_headers": True},
        ),
        (["--reasoning-parser", "qwen3"], {"backend": "xgrammar", "disable_any_whitespace": True}),
        (["--sse-keep-alive-interval", "0"], {"sse_keep_alive_interval": 0}),
        (["--no-enable-request-id-headers"], {"enable_request_id_headers": False}),
        (["--structured-outputs-config", '{"backend": "auto"}'], {"backend": "auto", "disable_any_whitespace": False}),
    ],
)
def test_defaults_differ_from_vllm_s_unless_told_otherwise(flags: list[str], expected: dict[str, object]) -> None:
    args = vllm_adapter.parse(flags, lambda parser: None)
    found = vars(args) | vars(args.structured_outputs_config)
    assert {name: found[name] for name in expected} == expected


def test_plugin_names_keep_the_users_choice() -> None:
    assert plugin_names({"VLLM_PLUGINS": "x, ropeswitch"}) == "ropeswitch,ropeswitch_refusals,x"
    assert plugin_names({"VLLM_PLUGINS": ""}) == "ropeswitch,ropeswitch_refusals"
    with pytest.raises(UsageError, match="VLLM_PLUGINS: 'x,y' leaves out 'ropeswitch'"):
        plugin_names({"VLLM_PLUGINS": "x,y"})
    assert {"ropeswitch", "lora_filesystem_resolver"} <= set(plugin_names({}).split(","))


def test_scheduling_flags_reach_the_engine(started: Started, checkpoint: Path) -> None:
    for flags, expected in (
        ([], (True, None)),
        (["--no-length-aware-scheduling"], (False, None)),
        (["--step-latency-target", "0.25"], (True, 0.25)),
    ):
        settings = started(str(checkpoint), *flags).additional_config["ropeswitch"]
        assert (settings["length_aware"], settings["step_latency_target"]) == expected


def test_vllm_s_log_is_held_unless_it_is_asked_for(started: Started, checkpoint: Path) -> None:
    assert started(str(checkpoint)).held
    for flag in ("--verbose", "--enable-log-requests", "--headless"):
        assert not started(str(checkpoint), flag).held, flag


def test_a_ladder_comes_from_a_file(started: Started, checkpoint: Path, tmp_path: Path) -> None:
    sets = [{"name": str(length), "max_length": length, "factors": factors(16, 1.0, 2.0)} for length in (64, 128, 2048)]
    args = started(str(checkpoint), "--factors", str(ladder_file(tmp_path / "ladder.json", sets)))
    found = args.additional_config["ropeswitch"]["sets"]
    assert [(each["name"], each["max_length"]) for each in found] == [("64", 64), ("128", 128), ("2048", 2048)]
    assert args.max_model_len == 2048


def test_the_bundled_model_by_its_path_is_the_bundled_model(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def found(*argv: str) -> tuple[list[str], int]:
        args = started(*argv)
        return [each["name"] for each in args.additional_config["ropeswitch"]["sets"]], args.kv_cache_memory_bytes

    monkeypatch.chdir(BUNDLED_MODEL.parent)
    (tmp_path / "link").symlink_to(BUNDLED_MODEL)
    for model in ([], [f"./{BUNDLED_MODEL.name}/"], [str(tmp_path / "link")]):
        assert found(*model) == (["r1", "r2", "x64", "x512"], 1 << 30)
    chosen = ["--ladder", "auto", "--kv-cache-memory-bytes", "64M"]
    assert found("longrope-mini", *chosen) == (["short", "long"], 64 << 20)


@pytest.mark.parametrize("from_file", [False, True], ids=["flag", "file"])
def test_keys_and_limits_reach_the_server_and_nothing_else_does(
    started: Started, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_file: bool
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "key-of-the-environment")
    gzip = "starlette.middleware.gzip.GZipMiddleware"
    config = tmp_path / "config.yaml"
    values = {"max-queued-requests": ["7", "long=2"], "middleware": [gzip], "metrics-key": "key-of-the-scraper"}
    config.write_text(json.dumps(values))
    flags = ["--max-queued-requests", "7", "long=2", "--middleware", gzip, "--metrics-key", "key-of-the-scraper"]
    args = started(str(checkpoint), *(["--config", str(config)] if from_file else flags))
    assert args.ropeswitch_front.max_queued_requests == {None: 7, "long": 2}
    assert args.ropeswitch_front.key_digests and args.ropeswitch_front.metrics_digests
    assert args.middleware == [gzip, "ropeswitch.server.front.front.Front"]
    # Upstream's own middleware would come with a key in these.
    assert args.api_key is None and "VLLM_API_KEY" not in os.environ
    assert "key-of-the" not in repr(args)
