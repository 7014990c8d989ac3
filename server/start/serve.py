"""``ropeswitch serve``: reads the model's config and the ladder, rejects invalid combinations, and starts vLLM's server."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.ladders.choice import AUTO, EXAMPLES, FILE, Choice, from_flags, parse
from ropeswitch.factors.ladders.choose import check_theta, choose
from ropeswitch.factors.ladders.made import MadeLadder
from ropeswitch.factors.places import base_line
from ropeswitch.factors.rules.lengths import parse_length
from ropeswitch.model_patches.switch.config import packages, variables
from ropeswitch.model_patches.switch.config.settings import ANGLES, POLICIES, RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.engine_args import configure
from ropeswitch.model_patches.switch.models.unsupported import check_device, check_features, check_model, check_rotation
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.server.front import flags as front_flags
from ropeswitch.server.start import arguments, refusals, scheduling_flags
from ropeswitch.server.start.fit import cpu, sequences
from ropeswitch.server.start.fit.memory import read_memory
from ropeswitch.server.start.log.console import Console, opened
from ropeswitch.server.start.log.downloads import cache_folder
from ropeswitch.server.start.log.held_log import chosen, open_standard_error
from ropeswitch.server.start.log.ready import ready_file
from ropeswitch.server.start.log.summary import summary, versions
from ropeswitch.server.start.plugin_names import VARIABLE, plugin_names
from ropeswitch.server.start.run import run as _run

BUNDLED_KV_CACHE = 1 << 30
# Exit code after Ctrl-C.
INTERRUPTED = 130

HELP = f"""\
usage: ropeswitch serve [MODEL] [--ladder LADDER] [--rope-angles {{{",".join(ANGLES)}}}] [any flag of vllm serve]

Start an OpenAI-compatible server that rotates every request with the factors for its own length.

  MODEL                 model folder or Hugging Face name (default: the bundled {BUNDLED_MODEL.name})
  --ladder LADDER       auto, none, file:PATH, or a rule with optional lengths, such as yarn, yarn:64k,128k or yarn:2x,4x
                        (default: auto, the model's own rotation, and YaRN for longer sequences)
  --factors FILE        short for --ladder file:FILE
  --native-window TOKENS
                        window that the model was trained with (default: from its config, or its family's documentation)
  --rope-angles ANGLES  exact, or hf for Hugging Face's float32 angles, for comparison (default: exact)
  --ladder-policy length|reserve
                        when to use a longer factor set: at a sequence's actual length, or from its start, for its
                        prompt plus output limit (default: length)
  --no-length-aware-scheduling
                        plan steps as vLLM does, not by predicted time with short work first
  --step-latency-target SECONDS
                        target time of a step while other requests wait (default: measured at startup)
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
                        maximum requests and prompt tokens waiting for a first token, for every factor set or for SET,
                        in each API server process
  --max-concurrent-per-key N
                        maximum requests in flight per API key, in each API server process
  --access-log json|all|off
                        JSON line for each HTTP request; all adds probes and /metrics (default: json)
  --log-prompts         add the prompts to the access log
  --ladder-aliases      list MODEL@SET, the model with each factor set, in /v1/models
  --tool-call-parser NAME
                        format of tool calls (default: by the chat template of known model families)
  --max-model-len N     maximum tokens of a sequence, or auto for as many as fit the KV cache (default: the model's maximum)
  --verbose             print vLLM's own log (default: its warnings, and progress at start)
  --host, --port        address and port to listen on (default: every address, port 8000)

  ROPESWITCH_LADDER, ROPESWITCH_FACTORS, ROPESWITCH_NATIVE_WINDOW, ROPESWITCH_ROPE_ANGLES, ROPESWITCH_LADDER_POLICY,
  ROPESWITCH_LENGTH_AWARE_SCHEDULING=true|false, ROPESWITCH_STEP_LATENCY_TARGET
                        environment variables for the flags of the same names; a flag takes precedence

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
        UsageError: if the server cannot start with these flags; the message is one line.
        FactorError: for an invalid factor file or ladder; likewise one line.
    """
    open_standard_error()
    if any(argument in ("-h", "--help") for argument in argv):
        print(HELP, end="")
        return 0
    try:
        code = _start(argv)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code in (0, INTERRUPTED):
        print("ropeswitch: stopped", file=sys.stderr, flush=True)
    return code


def _start(argv: Sequence[str]) -> int:
    if not any(argument.startswith("--help=") for argument in argv):
        variables.read(os.environ)
        arguments.check(argv, _add_flags)
    os.environ[VARIABLE] = plugin_names(os.environ)
    stage = "loading the engine's code"
    with opened(f"{versions()}: {stage}", stage, hold="--verbose" not in argv and not chosen(os.environ)) as console:
        return _serve(argv, console)


def _serve(argv: Sequence[str], console: Console) -> int:
    try:
        # The import takes seconds, and vLLM reads the plugin names during it.
        from ropeswitch.server.app import vllm_adapter
        from ropeswitch.server.app.classes import use_our_classes
        from ropeswitch.server.start import model_config, tool_parsers
    except ValueError as error:
        raise UsageError(f"VLLM_ environment variables: vLLM cannot be imported with them: {error}") from error
    except RuntimeError as error:
        # For example, a CUDA build of torchvision with a CPU build of torch.
        if "torchvision" not in str(error):
            raise
        raise UsageError(
            f"torchvision: incompatible with the installed torch ({error}). Install the matching build: {packages.command()}"
        ) from error

    args = vllm_adapter.parse(argv, _add_flags)
    # A headless node has no API server to become ready, so its log is printed throughout.
    if args.verbose or args.headless or vllm_adapter.logging_chosen(args):
        console.release()
    console.stage("reading the model's config")
    taken = _take_variables(args)
    args.ladder = from_flags(args.ladder, args.factors)
    scheduling_flags.check_vllm(args)
    _find_plugins(args)
    args.ropeswitch_access_log = front_flags.access_log(args)
    if args.model is None:
        args.model = str(BUNDLED_MODEL)
        args.served_model_name = args.served_model_name or [BUNDLED_MODEL.name]
    if _is_bundled(args.model):
        if args.ladder is None:
            args.ladder = Choice(f"{FILE}:{BUNDLED_FACTORS}", FILE, path=str(BUNDLED_FACTORS))
        if args.kv_cache_memory_bytes is None:
            # vLLM's default is most of the machine's memory, and it does not start if less is free.
            args.kv_cache_memory_bytes = BUNDLED_KV_CACHE
    try:
        device_name = vllm_adapter.device_name()
        check_device(device_name)
        check_features(args)
        hf_config = model_config.text_config(args)
        tool_notes = tool_parsers.choose(args, hf_config)
        settings, made = _settings(args, hf_config, taken)
        configure(args, settings, hf_config, device_name=device_name)
        base = base_line(settings.theta, hf_config.base, str(hf_config.get("model_type")))
        notes = [base, *_fit_memory(args, vllm_adapter.machine(args), settings, hf_config)]
    except UnsupportedError as error:
        raise UsageError(str(error)) from error
    with refusals.channel():
        args.ropeswitch_front = front_flags.take(args, os.environ, settings.ladder.names)
        # The last one is the outermost.
        args.middleware = [*args.middleware, front_flags.MIDDLEWARE]
        console.say(*summary(args, made, [*notes, *tool_notes]))
        console.stage("starting the engine")
        if (folder := cache_folder(args.model, args.download_dir)) is not None:
            console.downloads_to(folder)
        console.ready_from(ready_file())
        use_our_classes()
        return _run(vllm_adapter, args, console)


def _fit_memory(
    args: argparse.Namespace, machine: sequences.Machine, settings: RopeSettings, hf_config: Mapping[str, Any]
) -> list[str]:
    """Choose sizes that fit this machine's memory, refuse the user's sizes that do not, and return notes on the choices."""
    longest = settings.ladder.max_length if args.max_model_len == -1 else args.max_model_len
    axes = 3 if "mrope_section" in (hf_config.get("rope_parameters") or {}) else 0
    each = sequences.sequence_memory(args, machine, longest, axes)
    if machine.device == "cpu":
        return cpu.check(args, os.environ, machine, each)
    return sequences.check(args, machine, read_memory(), each, sequences.taken_beside_gpus(args))


def _find_plugins(args: argparse.Namespace) -> None:
    """Make relative paths of plugins absolute: vLLM's ``import_plugin`` mistakes ``./file.py`` for a module's name."""
    for name in ("tool_parser_plugin", "reasoning_parser_plugin"):
        if (path := getattr(args, name) or "").startswith("."):
            setattr(args, name, str(Path(path).resolve()))


def _is_bundled(model: str) -> bool:
    """Whether MODEL is the bundled model's folder, regardless of how its path is written."""
    return Path(model).expanduser().resolve() == BUNDLED_MODEL


def _add_flags(parser: Any) -> None:
    group = parser.add_argument_group("RopeSwitch", "Choose the factor ladder that rotates the requests.")
    group.add_argument("--ladder", metavar="LADDER", help=f"Ladder of factor sets: {EXAMPLES} (default: {AUTO}).")
    group.add_argument("--factors", metavar="FILE", help="Factor file; short for --ladder file:FILE.")
    group.add_argument(
        "--native-window", type=_native_window, metavar="TOKENS", help="Window that the model was trained with."
    )
    group.add_argument(
        "--rope-angles",
        choices=ANGLES,
        default="exact",
        help="Exact angles, or Hugging Face's float32 ones for comparison.",
    )
    group.add_argument(
        "--ladder-aliases",
        action="store_true",
        help="List the model names MODEL@SET, which force a factor set, in /v1/models; they are accepted either way "
        "(default: not listed).",
    )
    group.add_argument(
        "--ladder-policy",
        choices=POLICIES,
        default=POLICIES[0],
        help="When to use a longer factor set: at the actual length, or from the start, for prompt plus output limit.",
    )
    group.add_argument(
        "--verbose", action="store_true", help="Print vLLM's own log (default: its warnings, and progress at start)."
    )
    scheduling_flags.add(parser)
    front_flags.add(parser)
    options = variables.read(os.environ)
    # None if not given: the model's family decides (tool_parsers.py).
    parser.set_defaults(enable_auto_tool_choice=None)
    parser.set_defaults(**{flag: options[field] for field, flag in _FLAGS.items() if field in options})


# Flags whose default a variable sets, by the variable's field; `_take_variables` handles the ladder's.
_FLAGS = {
    "policy": "ladder_policy",
    "angles": "rope_angles",
    "length_aware": "length_aware_scheduling",
    "step_latency_target": "step_latency_target",
}


def _take_variables(args: argparse.Namespace) -> dict[str, str]:
    """Set the ladder and the native window from environment variables where no flag sets them.

    Returns:
        The variable that set each flag, by flag.
    """
    options = variables.read(os.environ)
    taken = {}
    if args.ladder is None and args.factors is None:
        args.ladder, args.factors = options.get("ladder"), options.get("factors")
        if source := {"ladder", "factors"} & options.keys():
            taken["--ladder"] = f"ROPESWITCH_{source.pop().upper()}"
    listed = args.factors is not None or (args.ladder or "").startswith(f"{FILE}:")
    if args.native_window is None and not listed and "native_window" in options:
        args.native_window = options["native_window"]
        taken["--native-window"] = "ROPESWITCH_NATIVE_WINDOW"
    return taken


def _native_window(text: str) -> int:
    try:
        return parse_length("", text)
    except FactorError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _settings(
    args: argparse.Namespace, hf_config: Mapping[str, Any], taken: Mapping[str, str]
) -> tuple[RopeSettings, MadeLadder]:
    """Return the settings from the flags, and their ladder with the origin of its numbers.

    Args:
        args: The command line.
        hf_config: The model's text config.
        taken: Variables that set flags, by flag; errors name the variable instead of the flag.

    Raises:
        FactorError: for an invalid factor file or ladder, or a model without a ladder.
        UnsupportedError: for a model that does not support a ladder.
    """
    check_rotation(hf_config)
    try:
        made = choose(args.ladder or parse(AUTO), hf_config, args.max_model_len, args.native_window)
    except FactorError as error:
        text = str(error)
        for flag, variable in taken.items():
            text = text.replace(flag, variable)
        raise FactorError(text) from error
    theta = check_model(hf_config, made.ladder)
    check_theta(made, theta)
    settings = RopeSettings(
        ladder=made.ladder,
        theta=theta,
        angles=args.rope_angles,
        length_aware=args.length_aware_scheduling,
        step_latency_target=args.step_latency_target,
        origins=made.origins,
        policy=args.ladder_policy,
    )
    return settings, made
