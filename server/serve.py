"""``ropeswitch serve``: reads the model's config and the ladder, refuses wrong combinations, starts vLLM's server."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.model_patches.switch.engine_args import configure
from ropeswitch.model_patches.switch.settings import ANGLES, RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.unsupported import check_device, check_features, check_model
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.server import refusals, scheduling_flags, trace_flags
from ropeswitch.server.access_log import flags as access_log_flags
from ropeswitch.server.errors import UsageError
from ropeswitch.server.front import flags as front_flags
from ropeswitch.server.front.shared_counts import SharedCounts
from ropeswitch.server.model_folder import check_model_folder
from ropeswitch.server.plugin_names import VARIABLE, plugin_names

BUNDLED_KV_CACHE = 1 << 30

HELP = f"""\
usage: ropeswitch serve [MODEL] [--factors FILE] [--rope-angles {{{",".join(ANGLES)}}}] [any flag of vllm serve]

Start an OpenAI-compatible server that rotates every request with the factors for its own length.

  MODEL                 a folder or a Hugging Face name (default: the bundled {BUNDLED_MODEL.name})
  --factors FILE        factor file (default: the LongRoPE factors of the model's config)
  --rope-angles ANGLES  exact, or hf for Hugging Face's float32 angles, for comparison (default: exact)
  --no-length-aware-scheduling
                        plan steps as vLLM does, not by predicted time with short work first
  --step-latency-target SECONDS
                        target time of a step while others wait (default: measured at start)
  --api-key KEY [KEY ...], --api-key-file FILE
                        API keys, required on every route except /health*, /metrics and the files of /ui
  --metrics-key KEY, --metrics-key-file FILE
                        keys for /metrics, which then requires one of them or an API key
  --max-body-bytes SIZE, --body-timeout SECONDS
                        maximum size of a request body, and longest pause in receiving it
  --max-held-body-bytes SIZE
                        maximum total size of request bodies in flight
  --max-prompt-tokens N maximum tokens of a prompt (default: the longest sequence)
  --max-queued-requests [SET=]N ..., --max-queued-tokens [SET=]N ...
                        maximum waiting for a first token, for each factor set or for one
  --max-concurrent-per-key N, --requests-per-minute-per-key N
                        client limits, per API key
  --access-log json|all|off
                        JSON line for each HTTP request; all adds probes and /metrics (default: json)
  --log-prompts         add the prompts to these lines
  --max-model-len N     maximum tokens of a sequence; auto is the most that fit the KV cache (default: the ladder's end)
  --host, --port        address and port to listen on (default: every address, port 8000)

  --help=all            show every flag, including vLLM's
  --help=WORD           show flags whose name contains WORD
"""


def serve(argv: Sequence[str]) -> int:
    """Run the server until it is stopped.

    Args:
        argv: The arguments after ``ropeswitch serve``.

    Returns:
        The exit code.

    Raises:
        UsageError: when the start is refused; the message is one line.
        FactorError: the same, for a factor file or ladder.
    """
    if any(argument in ("-h", "--help") for argument in argv):
        print(HELP, end="")
        return 0
    _check_files(argv)
    os.environ[VARIABLE] = plugin_names(os.environ)
    # Importing it takes seconds, and vLLM reads the plugin names while it is imported.
    from ropeswitch.server import model_config, vllm_adapter

    args = vllm_adapter.parse(argv, _add_flags)
    scheduling_flags.check(args)
    trace_flags.check(args)
    args.ropeswitch_access_log = access_log_flags.take(args)
    if args.model is None:
        args.model = str(BUNDLED_MODEL)
        args.served_model_name = args.served_model_name or [BUNDLED_MODEL.name]
        if args.factors is None:
            args.factors = str(BUNDLED_FACTORS)
        if args.kv_cache_memory_bytes is None:
            # vLLM's default is most of the machine's memory, and it does not start where less is free.
            args.kv_cache_memory_bytes = BUNDLED_KV_CACHE
    try:
        device_name = vllm_adapter.device_name()
        check_device(device_name)
        check_features(args)
        hf_config = model_config.text_config(args)
        settings = _settings(args, hf_config)
        configure(args, settings, hf_config, device_name=device_name)
    except UnsupportedError as error:
        raise UsageError(str(error)) from error
    with refusals.channel() as file:
        counts = SharedCounts.create(file.with_name("counts"))
        args.ropeswitch_front = front_flags.take(args, os.environ, settings.ladder.names, counts)
        # The last one is the outermost.
        args.middleware = [*args.middleware, front_flags.MIDDLEWARE]
        print(_summary(args, settings.ladder), file=sys.stderr, flush=True)
        return _run(vllm_adapter, args)


def _check_files(argv: Sequence[str]) -> None:
    """Check the files named on the command line, before loading vLLM, which takes seconds.

    They are read again once vLLM's parser, which knows all flags and config files, has parsed the arguments.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    early.add_argument("--factors")
    if argv and not argv[0].startswith("-"):
        check_model_folder(argv[0])
    try:
        known, _ = early.parse_known_args(list(argv))
    except argparse.ArgumentError:
        return
    if known.factors is not None:
        _load_factors(known.factors)


def _load_factors(path: str) -> Any:
    from ropeswitch.factors import file

    return file.load(path)


def _add_flags(parser: Any) -> None:
    group = parser.add_argument_group("RopeSwitch", "Which factor ladder rotates the requests.")
    group.add_argument("--factors", metavar="FILE", help="Factor file whose ladder to put on the model.")
    group.add_argument(
        "--rope-angles",
        choices=ANGLES,
        default="exact",
        help="Exact angles, or Hugging Face's float32 ones for comparison.",
    )
    scheduling_flags.add(parser)
    front_flags.add(parser)
    access_log_flags.add(parser)


def _settings(args: argparse.Namespace, hf_config: Mapping[str, Any]) -> RopeSettings:
    """Settings from the flags, with the ladder of ``--factors`` or of the model's config.

    Raises:
        FactorError: for a wrong factor file or a model without factors.
        UnsupportedError: for a model that cannot have a ladder.
    """
    file_theta = None
    if args.factors is not None:
        loaded = _load_factors(args.factors)
        ladder, file_theta = loaded.ladder, loaded.theta
    elif (from_config := ladder_from_config(hf_config)) is not None:
        ladder = from_config
    else:
        raise FactorError(
            f"the config of {args.model!r} has no LongRoPE factors; give a factor file with --factors FILE"
        )
    theta = check_model(hf_config, ladder)
    if file_theta is not None and file_theta != theta:
        raise FactorError(
            f"rope_theta: factor file {args.factors!r} was made for {file_theta}, but the model's rope_theta is {theta}"
        )
    return RopeSettings(
        ladder=ladder,
        theta=theta,
        angles=args.rope_angles,
        length_aware=args.length_aware_scheduling,
        step_latency_target=args.step_latency_target,
    )


def _summary(args: argparse.Namespace, ladder: FactorLadder) -> str:
    sets = ", ".join(f"{each.name} to {each.max_length}" for each in ladder.sets)
    scheme = "https" if args.ssl_certfile else "http"
    where = args.uds or f"{scheme}://{args.host or '0.0.0.0'}:{args.port}"
    longest = "auto" if args.max_model_len == -1 else args.max_model_len
    return (
        f"ropeswitch: factor sets by length in tokens: {sets}; longest sequence {longest}\n"
        f"ropeswitch: serving {args.model} at {where} when the engine is up"
    )


def _run(vllm_adapter: Any, args: argparse.Namespace) -> int:
    from ropeswitch.server.engine_watch import WATCH

    try:
        vllm_adapter.serve(args)
        if WATCH.died:
            print("ropeswitch: error: the engine died; the log above says why", file=sys.stderr, flush=True)
            return 1
        return 0
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        # A child process has reported its refusal; a refusal of this process is the error itself.
        if (reason := refusals.reported() or refusals.reason_of(error)) is None:
            if not refusals.died(error):
                raise
            print(f"ropeswitch: error: {str(error).rstrip('.')}; the log above says why", file=sys.stderr, flush=True)
            return 1
        raise UsageError(reason) from error
