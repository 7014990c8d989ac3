"""Values that are refused before vLLM is imported, and names that are not because vLLM takes them."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.config import LoadConfig, ModelConfig
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.registry import RENDERER_REGISTRY
from vllm.tokenizers.registry import TokenizerRegistry
from vllm.tool_parsers import ToolParserManager
from vllm.transformers_utils.config import _CONFIG_FORMAT_TO_CONFIG_PARSER

from ropeswitch.factors.errors import UsageError
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server import vllm_adapter
from ropeswitch.server.flags import check, hub, values
from ropeswitch.server.flags.table import Flag, read_table
from ropeswitch.server.serve import _add_flags

# By destination, whether vLLM takes a name: its config's own validators, and then the registry that it looks in.
VLLM_TAKES: dict[str, Callable[[Any], bool]] = {
    "load_format": lambda name: LoadConfig(load_format=name).load_format in _LOAD_FORMAT_TO_MODEL_LOADER,
    "quantization": lambda name: ModelConfig.validate_quantization_before(name) in QUANTIZATION_METHODS,
    "tokenizer_mode": lambda name: (
        (mode := ModelConfig._lowercase_tokenizer_mode(name)) == "auto"
        or mode in TokenizerRegistry.tokenizers
        or mode in RENDERER_REGISTRY.renderers
    ),
    "config_format": lambda name: name == "auto" or name in _CONFIG_FORMAT_TO_CONFIG_PARSER,
    "tool_call_parser": lambda name: name in ToolParserManager.list_registered(),
    "reasoning_parser": lambda name: name in ReasoningParserManager.list_registered(),
    "distributed_executor_backend": lambda name: name in ("external_launcher", "mp", "ray", "uni"),
    "model_impl": lambda name: name in ("auto", "terratorch", "transformers", "vllm"),
}
NAMED = [flag for flag in read_table() if flag.names]


def parsed(*flags: str) -> argparse.Namespace:
    return check.parse([str(BUNDLED_MODEL), "--port", "0", *flags], _add_flags)


def refusal(*flags: str) -> str | None:
    try:
        values.check(parsed(*flags))
    except UsageError as error:
        return str(error)
    return None


@pytest.mark.parametrize("flag", NAMED, ids=lambda flag: flag.dest)
def test_names_are_those_that_vllm_takes(flag: Flag) -> None:
    """Every name that vLLM or the table knows, in small and capital letters, and one that nobody knows."""
    known = {
        "load_format": _LOAD_FORMAT_TO_MODEL_LOADER,
        "quantization": QUANTIZATION_METHODS,
        "tokenizer_mode": [*TokenizerRegistry.tokenizers, *RENDERER_REGISTRY.renderers],
        "config_format": _CONFIG_FORMAT_TO_CONFIG_PARSER,
    }
    args = parsed("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    for name in sorted({*flag.names, *known.get(flag.dest, ()), "nobody"}):
        for value in (name, name.upper(), name.capitalize()):
            setattr(args, flag.dest, value)
            try:
                values.check(args)
                taken = True
            except UsageError as error:
                assert str(error).startswith(f"{flag.flags[0]}: {value!r} must be ")
                taken = False
            assert taken == VLLM_TAKES[flag.dest](value), value


def test_names_of_the_served_model() -> None:
    assert refusal("--served-model-name", " a", "b ") is None
    assert str(refusal("--served-model-name", "a", "")).startswith("--served-model-name: '' must be a name")


@pytest.mark.parametrize("user", ["~", "~nobody-of-that-name"])
@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--hf-config-path", "{}/m"], "MODEL"),
        (["--lora-modules", "a={}/m"], "--lora-modules: a={}/m"),
        (["--tokenizer", "{}/m"], "--tokenizer"),
    ],
)
def test_home_folders_that_are_unknown(flags: list[str], name: str, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have no home folder: no HOME, and no entry in the list of users."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 1 << 30)
    args = parsed(*(each.format(user) for each in flags))
    with pytest.raises(UsageError) as refused:
        values.check(args)
        hub.check_models(args)
    expected = f"{name.format(user)}: {user + '/m'!r}: the home folder of {user!r} is unknown; use an absolute path"
    assert str(refused.value) == expected


@pytest.mark.parametrize("name", ["none.conf", "{folder}/none.conf"])
def test_log_config_files_are_always_looked_up(tmp_path: Path, name: str) -> None:
    path = name.format(folder=tmp_path)
    assert refusal("--log-config-file", path) == f"--log-config-file: there is no file {path!r}"
    (tmp_path / "log.conf").touch()
    assert refusal("--log-config-file", str(tmp_path / "log.conf")) is None


def test_a_log_config_that_vllm_refuses_is_a_refusal(tmp_path: Path) -> None:
    argv = [str(BUNDLED_MODEL), "--logging-config", json.dumps({"pylogging_config_file": str(tmp_path / "none")})]
    with pytest.raises(UsageError, match=f"^--logging-config: Could not load .* {tmp_path}/none$"):
        vllm_adapter.parse(argv, _add_flags)


@pytest.mark.parametrize("host", ["a..b", "::zz"])
def test_hosts_that_are_no_address(host: str) -> None:
    message = refusal("--host", host)
    assert message is not None and message.startswith(f"--host: {host!r} is not an address of this machine: ")


@pytest.mark.parametrize(
    ("flags", "protocol", "message"),
    [
        ("--disable-log-stats", "smoke", None),
        ("--otlp-traces-endpoint x", None, None),
        ("--otlp-traces-endpoint x", "http/protobuf", None),
        (
            "--otlp-traces-endpoint x",
            "smoke",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: 'smoke' must be one of grpc, http/protobuf",
        ),
        (
            "--otlp-traces-endpoint x --disable-log-stats",
            None,
            "--otlp-traces-endpoint: 'x' needs the statistics that --disable-log-stats turns off; leave one of the two out",
        ),
    ],
)
def test_traces_that_could_not_be_made(
    flags: str, protocol: str | None, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", raising=False)
    if protocol is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    assert refusal(*flags.split()) == message


def test_traces_without_an_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    message = refusal("--otlp-traces-endpoint", "x")
    assert message is not None and "install opentelemetry-exporter-otlp" in message
