"""``ropeswitch serve``: reads the model's config and the ladder, rejects invalid combinations, and starts vLLM's server."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import FieldError, UsageError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.ladders.choice import AUTO, FILE, Choice, parse
from ropeswitch.factors.ladders.choose import check_theta, choose
from ropeswitch.factors.ladders.made import MadeLadder
from ropeswitch.factors.places import base_line
from ropeswitch.model_patches.switch.config import variables
from ropeswitch.model_patches.switch.config.key import NAME, left_out
from ropeswitch.model_patches.switch.config.settings import RESERVE, RESERVES, RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.engine_args import configure
from ropeswitch.model_patches.switch.models.unsupported import check_device, check_features, check_model, check_rotation
from ropeswitch.model_patches.switch.releases import UNVERIFIED, described, unverified
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.server.front import flags as front_flags
from ropeswitch.server.start import arguments, flags, refusals
from ropeswitch.server.start.fit import cpu, sequences
from ropeswitch.server.start.fit.memory import read_memory
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory
from ropeswitch.server.start.log.console import Console
from ropeswitch.server.start.log.ready import ready_file
from ropeswitch.server.start.model_folder import expanded
from ropeswitch.server.start.run import run as _run

BUNDLED_KV_CACHE = 1 << 30
# Exit code after Ctrl-C.
INTERRUPTED = 130
# Names the plugins that vLLM loads.
_PLUGINS = "VLLM_PLUGINS"


def serve(argv: Sequence[str]) -> int:
    """Run the server until it is stopped, and return the exit code.

    Args:
        argv: The arguments after ``ropeswitch serve``.

    Raises:
        InputError: if the server cannot start with these flags; the message is one line.
    """
    if any(argument in ("-h", "--help") for argument in argv):
        print(flags.parser().format_help(), end="")
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
        arguments.check(argv)
    os.environ[_PLUGINS] = plugin_names(os.environ)
    with closing(Console(f"version {version(NAME)}, {described()}", "loading the engine's code")) as console:
        if "--verbose" in argv:
            console.release()
        return _serve(argv, console)


def plugin_names(environment: Mapping[str, str]) -> str:
    """Return the ``VLLM_PLUGINS`` that adds our plugins to the user's choice, or to all plugins if it is unset.

    vLLM loads an endpoint plugin only if the variable names it. Once it is set, it must name plugins of every kind.

    Raises:
        UsageError: when the user's choice excludes the switch.
    """
    if chosen := environment.get(_PLUGINS):
        if (reason := left_out(environment)) is not None:
            raise UsageError(reason)
        names = {name.strip() for name in chosen.split(",")}
    elif chosen is not None:
        names = set()
    else:
        # By default vLLM loads every group but the endpoint plugins, which add routes to the server.
        groups = {group for group in entry_points().groups if group.startswith("vllm.")} - {"vllm.endpoint_plugins"}
        names = {entry.name for group in groups for entry in entry_points(group=group)}
    # The switch and the server's endpoints; the hook that reports failed starts of child processes.
    return ",".join(sorted({*names, NAME, f"{NAME}_refusals"} - {""}))


def _serve(argv: Sequence[str], console: Console) -> int:
    try:
        # The import takes seconds, and vLLM reads the plugin names during it.
        from ropeswitch.server.app import vllm_adapter
        from ropeswitch.server.app.engine_client import use_our_classes
        from ropeswitch.server.start import model_config
    except (ValueError, RuntimeError, ImportError) as error:
        # Of a VLLM_ variable, of a build of torchvision that does not match torch's, or of a vLLM that has moved a module.
        hint = "`ropeswitch patches check` reports whether this vLLM release is supported"
        raise UsageError(f"vLLM cannot be imported: {error}; {hint}") from error

    args = vllm_adapter.parse(argv, flags.add)
    # A headless node has no API server to become ready, so its log is printed throughout.
    if args.verbose or args.headless or args.enable_log_requests:
        console.release()
    if args.unverified_vllm:
        os.environ[UNVERIFIED] = "1"
    console.stage = "reading the model's config"
    flags.check(args)
    args.ropeswitch_access_log = front_flags.paths_left_out(args)
    if args.model is None:
        args.model = str(BUNDLED_MODEL)
        args.served_model_name = args.served_model_name or [BUNDLED_MODEL.name]
    if _is_bundled(args.model) and args.kv_cache_memory_bytes is None:
        # vLLM's default is most of the machine's memory, and it does not start if less is free.
        args.kv_cache_memory_bytes = BUNDLED_KV_CACHE
    try:
        device_name = vllm_adapter.device_name()
        check_device(device_name)
        check_features(args)
        hf_config = model_config.text_config(args)
        settings, made = _settings(args, hf_config)
        configure(args, settings, hf_config, device_name=device_name)
        base = base_line(settings.theta, hf_config.base, str(hf_config.get("model_type")))
        notes = [base, *_fit_memory(args, vllm_adapter.machine(args), settings, hf_config)]
        if unverified():
            notes.append(
                f"{described()} has no recorded fingerprints: run `ropeswitch verify` before you trust an answer"
            )
    except UnsupportedError as error:
        raise UsageError(str(error)) from error
    with refusals.channel():
        args.ropeswitch_front = front_flags.take(args, os.environ, settings.ladder.names)
        if (connector := os.environ.setdefault(front_flags.MEDIA_VARIABLE, NAME)) != NAME:
            notes.append(f"{front_flags.MEDIA_VARIABLE}: {connector} fetches media, unchecked by --allow-private-media")
        args.ropeswitch_dropped_lines = console.output.dropped
        # The last one is the outermost.
        args.middleware = [*args.middleware, front_flags.MIDDLEWARE]
        console.say(*_summary(args, made, notes))
        console.stage = "starting the engine" if Path(args.model).exists() else "downloading and starting the model"
        console.ready = ready_file()
        use_our_classes()
        return _run(vllm_adapter, args, console)


def _summary(args: argparse.Namespace, made: MadeLadder, notes: Sequence[str]) -> list[str]:
    """Return lines for the ladder, the policy, other choices (``notes``) and the model."""
    names = f", served as {', '.join(args.served_model_name)}" if args.served_model_name else ""
    policy = [RESERVES] if args.ladder_policy == RESERVE else []
    return [*made.lines(args.max_model_len), *policy, *notes, f"starting the engine for {args.model}{names}"]


def _fit_memory(
    args: argparse.Namespace, machine: sequences.Machine, settings: RopeSettings, hf_config: Mapping[str, Any]
) -> list[str]:
    """Choose sizes that fit this machine's memory, refuse the user's sizes that do not, and return notes on the choices."""
    longest = settings.ladder.max_length if args.max_model_len == -1 else args.max_model_len
    axes = 3 if "mrope_section" in (hf_config.get("rope_parameters") or {}) else 0
    each = SequenceMemory(
        longest,
        block_size=args.block_size or (128 if machine.device == "cpu" else 16),
        decode_context=args.decode_context_parallel_size,
        v2=machine.v2,
        device=machine.device,
        axes=axes,
    )
    if machine.device == "cpu":
        return cpu.check(args, os.environ, machine, each)
    return sequences.check(args, machine, read_memory(), each, sequences.taken_beside_gpus(args))


def _is_bundled(model: str) -> bool:
    """Whether MODEL is the bundled model's folder, regardless of how its path is written."""
    return expanded(model).resolve() == BUNDLED_MODEL


def _settings(args: argparse.Namespace, hf_config: Mapping[str, Any]) -> tuple[RopeSettings, MadeLadder]:
    """Return the settings from flags and variables, and their ladder with the origin of its numbers.

    Raises:
        FactorError: for an invalid factor file or ladder, or a model without a ladder.
        UnsupportedError: for a model that does not support a ladder.
    """
    check_rotation(hf_config)
    choice, window, names = flags.ladder(args)
    if choice is None and _is_bundled(args.model):
        choice = Choice(f"{FILE}:{BUNDLED_FACTORS}", FILE, path=str(BUNDLED_FACTORS))
    try:
        made = choose(choice or parse(AUTO), hf_config, args.max_model_len, window)
    except FieldError as error:
        raise FactorError(error.worded(names)) from error
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
