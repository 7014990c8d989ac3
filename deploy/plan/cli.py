"""``ropeswitch plan``: finds the layouts of a model that fit a number of GPUs, from its config alone."""

import argparse
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.files import save_text
from ropeswitch.factors.ladders.choice import AUTO, EXAMPLES, from_flags, parse
from ropeswitch.factors.numbers import LARGEST, number, positive, whole
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.rules.lengths import parse_length
from ropeswitch.model_patches.switch.config.settings import POLICIES

KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
MAX_GPUS = 1024
# vLLM's values of --max-model-len; only units of small letters take decimals.
_LENGTH = re.compile(r"(\d{1,10}(?:\.\d+(?=[kmg]))?)([kmgKMG]?)", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
EXAMPLE = """exit codes: 0 a layout fits, 1 no layout fits, 2 invalid input

example:
  ropeswitch plan Phi-4-mini-instruct --gpu A100-80GB --gpus 8 --target-concurrency 16 --helm values.yaml
"""
# Name, metavar, default and help of the flags that take any text.
_FLAGS = (
    ("gpus-per-node", "N", "8", "GPUs per node (default: 8)"),
    ("node-memory-gib", "GIB", None, "host memory per node, shared by all its GPUs (default: not checked)"),
    ("gpu-file", "FILE", None, "TOML file with more kinds of GPU"),
    ("ladder", "LADDER", None, f"ladder to serve with: {EXAMPLES} (default: {AUTO})"),
    ("factors", "FILE", None, "factor file to serve with; short for --ladder file:FILE"),
    ("native-window", "TOKENS", None, "window the model was trained with (default: its config or family)"),
    ("max-model-len", "TOKENS", None, "maximum sequence length, as in serve (default: the ladder's end)"),
    ("target-concurrency", "K", "1", "sequences of that length to hold at once (default: 1)"),
    ("gpu-memory-utilization", "X", "0.9", "share of GPU memory vLLM may use (default: 0.9)"),
    ("reserve-gib", "GIB", "3", "part of that share for all but weights and KV, per GPU (default: 3)"),
    ("helm", "FILE", None, "write values for the Helm chart; - prints them, and moves the report to standard error"),
)


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the ``plan`` command; its ``func`` takes the namespace and returns an exit code."""
    about, raw = "compute the GPUs and layout a model needs for a length", argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser("plan", help=about, epilog=EXAMPLE, formatter_class=raw)
    add = parser.add_argument
    add("model", metavar="MODEL", help="model folder, config.json, or hub name whose config is in the local cache")
    add("--gpu", required=True, metavar="KIND", help="kind of GPU, such as A100-80GB; an unknown name prints the list")
    add("--gpus", required=True, metavar="N", help="number of GPUs, at most 1024")
    for name, metavar, default, about in _FLAGS:
        add(f"--{name}", metavar=metavar, default=default, help=about)
    about = "policy to serve with, for the printed command and --helm; changes no figure (default: the server's)"
    add("--ladder-policy", choices=POLICIES, help=about)
    add(
        "--kv-cache-dtype",
        choices=tuple(KV_BYTES),
        default="auto",
        help="type of the KV cache (default: auto, 16 bits)",
    )
    add("--json", action="store_true", help="print JSON instead of text")
    add("--force", action="store_true", help="overwrite the file of --helm if it exists")
    parser.set_defaults(func=_plan)


def _plan(args: argparse.Namespace) -> int:
    # Imported here, because other commands do not need these modules.
    from ropeswitch.deploy.plan import gpus, model_config, report
    from ropeswitch.deploy.plan.costs import Workload
    from ropeswitch.deploy.plan.model_shape import shape_from_config
    from ropeswitch.deploy.plan.planner import Cluster, make_plan
    from ropeswitch.deploy.plan.serve_flags import Serving, helm_values, serve_flags

    known, gib = gpus.load(args.gpu_file), args.node_memory_gib
    if args.gpu not in known:
        raise UsageError(f"--gpu: {args.gpu!r} is unknown; allowed: {', '.join(known)}, or add it with --gpu-file FILE")
    cluster = Cluster(
        gpu=known[args.gpu],
        gpus=whole("--gpus", args.gpus, 1, MAX_GPUS),
        node_size=whole("--gpus-per-node", args.gpus_per_node, 1, MAX_GPUS),
        target_concurrency=whole("--target-concurrency", args.target_concurrency, 1, 1_000_000),
        node_memory=gib and int(positive("--node-memory-gib", gib, 1 << 20, "a number above 0 up to 1048576") * 2**30),
    )
    utilization = positive("--gpu-memory-utilization", args.gpu_memory_utilization, 1, "a number above 0 up to 1")
    reserve = number("--reserve-gib", args.reserve_gib, 0, 1024, "a number from 0 up to 1024")
    choice = from_flags(args.ladder, args.factors)
    name, config = model_config.read_model(args.model)
    shape = shape_from_config(name, config)
    length = None if args.max_model_len is None else _length(args.max_model_len)
    window = None if args.native_window is None else parse_length("--native-window", args.native_window)
    ladder = model_config.find_ladder(name, config, choice or parse(AUTO), length, window)
    if length is None:
        # The printed command sets the length, which may give the automatic ladder a set above the native window.
        length = ladder.ladder.max_length
        ladder = model_config.find_ladder(name, config, choice or parse(AUTO), length, window)
    if shape.sliding_window is not None and shape.sliding_window < length:
        raise UsageError(
            f"{name}: sliding_window: {shape.sliding_window} is less than the {length} tokens of --max-model-len, so its "
            "layers drop earlier tokens; plan for at most the window, or set sliding_window to null if trained without it"
        )
    load = Workload(length, KV_BYTES[args.kv_cache_dtype], utilization, reserve)
    plan = make_plan(shape, cluster, load)
    model = str(Path(args.model).parent) if Path(args.model).expanduser().is_file() else args.model
    serving = Serving(model, length, utilization, args.kv_cache_dtype, choice, window, args.ladder_policy)
    command = serve_flags(serving, plan.recommended) if plan.recommended else None
    if args.json:
        shown = json.dumps(report.as_json(shape, cluster, load, ladder, plan, command), indent=2)
    else:
        shown = report.text(shape, cluster, load, ladder, plan, shlex.join(command) if command else None)
    print(shown, file=sys.stderr if args.helm == "-" else sys.stdout)
    if plan.recommended is None:
        return 1
    if args.helm is not None:
        import yaml

        values = helm_values(serving, shape, plan.recommended)
        content = "# Generated by ropeswitch plan; docs/planning.md describes each value.\n"
        content += yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        if args.helm == "-":
            print(content, end="")
        else:
            save_text(args.helm, content, overwrite=args.force)
    return 0


def _length(text: str) -> int:
    """Parse ``--max-model-len`` as vLLM does; there is no ``auto``, since no GPU is there to fit it to."""
    match = _LENGTH.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--max-model-len: {quoted(text)} must be a number of tokens, such as 131072, 128k (128,000) or 128K (131,072)"
        )
    return whole("max_model_len", str(int(float(match[1]) * _UNITS[match[2]])), 1, LARGEST)
