"""``ropeswitch plan``: which layouts of a model fit a number of GPUs, from its config alone."""

import argparse
import json
import shlex
import sys
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.numbers import number, positive, whole

KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
MAX_GPUS = 1024
EXAMPLE = """exit codes: 0 a layout fits, 1 none does, 2 the input is wrong

example:
  ropeswitch plan Phi-4-mini-instruct --gpu A100-80GB --gpus 8 --target-concurrency 16 --helm values.yaml
"""


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the ``plan`` command; it sets ``func``, from the namespace to an exit code."""
    parser = subparsers.add_parser(
        "plan",
        help="work out which GPUs and layout a model needs for a length",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model folder, its config.json, or a hub name whose config is cached here")
    add("--gpu", required=True, metavar="KIND", help="kind of GPU, such as A100-80GB; an unknown name prints the list")
    add("--gpus", required=True, metavar="N", help="how many there are")
    add("--gpus-per-node", default="8", metavar="N", help="how many a node has (default: 8)")
    add("--gpu-file", metavar="FILE", help="a TOML file with more kinds of GPU")
    add("--factors", metavar="FILE", help="the factor file to serve with (default: the factors of the config)")
    add("--max-model-len", metavar="TOKENS", help="the longest sequence (default: the ladder's end, else the config's)")
    add("--target-concurrency", default="1", metavar="K", help="sequences of that length to hold at once (default: 1)")
    add("--kv-cache-dtype", choices=tuple(KV_BYTES), default="auto", help="the type of stored keys and values")
    add("--gpu-memory-utilization", default="0.9", metavar="X", help="the share of memory vLLM may take (default: 0.9)")
    add("--reserve-gib", default="3", metavar="GIB", help="of it for all but weights and KV, per GPU (default: 3)")
    add("--json", action="store_true", help="print JSON instead of text")
    add(
        "--helm",
        metavar="FILE",
        help="write values for the Helm chart; - prints them, and the report to standard error",
    )
    add("--force", action="store_true", help="replace the file of --helm if it exists")
    parser.set_defaults(func=_plan)


def _plan(args: argparse.Namespace) -> int:
    # Imported here: other commands need none of it.
    from ropeswitch.deploy.plan import gpus, model_config, report
    from ropeswitch.deploy.plan.costs import Workload
    from ropeswitch.deploy.plan.model_shape import shape_from_config
    from ropeswitch.deploy.plan.planner import Cluster, make_plan
    from ropeswitch.deploy.plan.serve_flags import serve_flags

    cluster = Cluster(
        gpu=gpus.choose(gpus.load(args.gpu_file), args.gpu),
        gpus=whole("--gpus", args.gpus, 1, MAX_GPUS),
        node_size=whole("--gpus-per-node", args.gpus_per_node, 1, MAX_GPUS),
        target_concurrency=whole("--target-concurrency", args.target_concurrency, 1, 1_000_000),
    )
    utilization = positive("--gpu-memory-utilization", args.gpu_memory_utilization, 1, "a number above 0 up to 1")
    reserve = number("--reserve-gib", args.reserve_gib, 0, 1024, "a number from 0 up to 1024")
    path = model_config.find_config(args.model)
    name, config = model_config.read_model(path)
    shape = shape_from_config(name, config)
    ladder = model_config.find_ladder(name, config, args.factors)
    length = _max_model_len(args.max_model_len, ladder, shape.max_positions)
    if shape.sliding_window is not None and shape.sliding_window < length:
        raise UsageError(
            f"{name}: sliding_window: {shape.sliding_window} is less than the {length} tokens of --max-model-len, so its "
            "layers forget; plan for at most the window, or set sliding_window to null if the model was trained without it"
        )
    load = Workload(length, KV_BYTES[args.kv_cache_dtype], utilization, reserve)
    plan = make_plan(shape, cluster, load)
    serving = _serving(args, ladder, length, utilization, is_file=path == model_config.as_path(args.model))
    command = serve_flags(serving, plan.recommended) if plan.recommended else None
    if args.json:
        shown = json.dumps(report.as_json(shape, cluster, load, plan, command), indent=2)
    else:
        quoted = [shlex.quote(word) for word in command] if command else None
        shown = report.text(shape, cluster, load, plan, quoted)
    print(shown, file=sys.stderr if args.helm == "-" else sys.stdout)
    if plan.recommended is None:
        return 1
    if args.helm is not None:
        _write_helm(args, serving, shape, plan.recommended)
    return 0


def _serving(
    args: argparse.Namespace, ladder: FactorLadder | None, length: int, utilization: float, is_file: bool
) -> Any:
    from pathlib import Path

    from ropeswitch.deploy.plan.serve_flags import FACTOR_FILE, Serving

    return Serving(
        model=str(Path(args.model).parent) if is_file else args.model,
        max_model_len=length,
        memory_utilization=utilization,
        kv_cache_dtype=args.kv_cache_dtype,
        factors=FACTOR_FILE if ladder is None else args.factors,
    )


def _write_helm(args: argparse.Namespace, serving: Any, shape: Any, chosen: Any) -> None:
    import yaml

    from ropeswitch.deploy.plan.serve_flags import helm_values
    from ropeswitch.factors.whole_file import save_text

    header = "# Made by ropeswitch plan; docs/planning.md says what each value is.\n"
    content = header + yaml.safe_dump(helm_values(serving, shape, chosen), sort_keys=False, allow_unicode=True)
    if args.helm == "-":
        print(content, end="")
    else:
        save_text(args.helm, content, overwrite=args.force)


def _max_model_len(asked: str | None, ladder: FactorLadder | None, max_positions: int) -> int:
    """The longest sequence: what was asked for, within the ladder where there is one; else the ladder's or config's end."""
    if asked is None:
        return ladder.max_length if ladder is not None else max_positions
    length = whole("--max-model-len", asked, 1, 2**31 - 1)
    if ladder is not None and length > ladder.max_length:
        raise UsageError(
            f"--max-model-len: {length} exceeds {ladder.max_length}, where the last factor set, {ladder.names[-1]!r}, ends"
        )
    return length
