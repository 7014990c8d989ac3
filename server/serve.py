"""``ropeswitch serve``: read the model's config and the ladder, refuse what cannot be right, start vLLM's server."""

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
  --factors FILE        put this file's factor ladder on the model; a model whose config has LongRoPE factors needs none
  --rope-angles ANGLES  exact (default), or hf for Hugging Face's float32 angles, for comparison
  --no-length-aware-scheduling
                        plan steps as vLLM does, not by the time that they take and short work first
  --step-latency-target SECONDS
                        how long a step should take while others wait (default: found from the hardware at start)
  --api-key KEY [KEY ...], --api-key-file FILE
                        keys of which every request needs one, but /health*, /metrics and the files of /ui
  --metrics-key KEY, --metrics-key-file FILE
                        keys for /metrics, which then needs one or an API key
  --max-body-bytes SIZE, --body-timeout SECONDS
                        the largest body of a request, and how long nothing may come of it
  --max-held-body-bytes SIZE
                        what the bodies of all requests in hand may hold together
  --max-prompt-tokens N the longest prompt (default: what the longest sequence allows)
  --max-queued-requests [SET=]N ..., --max-queued-tokens [SET=]N ...
                        what may wait for its first token, for prompts of each factor set
  --max-concurrent-per-key N, --requests-per-minute-per-key N
                        what one API key may ask for
  --access-log json|all|off
                        a JSON line for each HTTP request (json; all has probes and /metrics too)
  --log-prompts         write the prompts into these lines
  --max-model-len N     the longest sequence (default: the ladder's end); auto takes what fits the KV cache
  --host, --port        where to listen (default: every address, port 8000)

  --help=all            every flag, vLLM's too
  --help=WORD           the flags whose name contains WORD
"""


def serve(argv: Sequence[str]) -> int:
    """Run the server until it is told to stop.

    Args:
        argv: The arguments after ``ropeswitch serve``.

    Returns:
        The exit code.

    Raises:
        UsageError: when the start is refused, with the reason in one line.
        FactorError: the same, for a factor file or ladder.
    """
    if any(argument in ("-h", "--help") for argument in argv):
        print(HELP, end="")
        return 0
    _check_files(argv)
    os.environ[VARIABLE] = plugin_names(os.environ)
    # Seconds of imports, so only now; and after the plugins are named, which vLLM reads while it is imported.
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
            # vLLM would reserve nearly all memory, and not start where that much is not free.
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
    with refusals.channel() as told:
        counts = SharedCounts.create(told.with_name("counts"))
        args.ropeswitch_front = front_flags.take(args, os.environ, settings.ladder.names, counts)
        # The last one lies outside all others.
        args.middleware = [*args.middleware, front_flags.MIDDLEWARE]
        print(_summary(args, settings.ladder), file=sys.stderr, flush=True)
        return _run(vllm_adapter, args)


def _check_files(argv: Sequence[str]) -> None:
    """Look at the files that the command line names, before the seconds that it takes to load vLLM.

    They are read again when vLLM's own parser, which knows all its flags and config files, has read the arguments.
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
    """The ladder of ``--factors``, or the one that the model's config describes, and how to schedule.

    Raises:
        FactorError: for a wrong factor file or a model without factors.
        UnsupportedError: for a model that a ladder cannot be put on.
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
        # A refusal found in a child process has been told by it; one found in this process is the error itself.
        if (reason := refusals.reported() or refusals.reason_of(error)) is None:
            if not refusals.died(error):
                raise
            print(f"ropeswitch: error: {str(error).rstrip('.')}; the log above says why", file=sys.stderr, flush=True)
            return 1
        raise UsageError(reason) from error
