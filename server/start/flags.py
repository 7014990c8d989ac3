"""Our flags of ``ropeswitch serve``, their defaults from environment variables, and their help."""

import argparse
import os
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.ladders.choice import AUTO, EXAMPLES, Choice, from_flags
from ropeswitch.factors.numbers import seconds
from ropeswitch.factors.parser import Parser
from ropeswitch.factors.rules.lengths import parse_length
from ropeswitch.model_patches.switch.config import variables
from ropeswitch.model_patches.switch.config.settings import ANGLES, MOST_STEP_SECONDS, POLICIES
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.front import flags as front_flags

# Flags whose default a variable sets, by the variable's field; :func:`ladder` reads the ladder's.
_DEFAULTS = {
    "policy": "ladder_policy",
    "angles": "rope_angles",
    "length_aware": "length_aware_scheduling",
    "step_latency_target": "step_latency_target",
}
MOST_STALL_SECONDS = 86_400.0
_VARIABLES = "\n  ".join(variables.FIELDS)
_DESCRIPTION = f"""\
Start an OpenAI-compatible server that rotates every request with the factors for its own length.
MODEL is a model folder or a Hugging Face name (default: the bundled {BUNDLED_MODEL.name}).
"""
_EPILOG = f"""\
Any flag of vllm serve works too, such as --max-model-len, --api-key and --tool-call-parser:
  --help=all            show every flag
  --help=WORD           show flags whose name contains WORD

Environment variables for the flags of the same names; a flag takes precedence:
  {_VARIABLES}
"""


def parser() -> Parser:
    """Return a parser of our flags, and of those of vLLM that ``--help`` shows or that name the model."""
    made = Parser(
        prog="ropeswitch serve",
        usage="ropeswitch serve [MODEL] [--ladder LADDER] [any flag of vllm serve]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    add(made)
    group = made.add_argument_group("Address")
    group.add_argument("--host", help="Address to listen on (default: every address).")
    group.add_argument("--port", type=int, default=8000, help="Port to listen on (default: 8000).")
    group.add_argument("--model", help=argparse.SUPPRESS)
    return made


def add(parser: Any) -> None:
    """Add our flags to ``vllm serve``'s parser."""
    group = parser.add_argument_group("RopeSwitch", "Choose the factor ladder that rotates the requests.")
    group.add_argument("--ladder", metavar="LADDER", help=f"Ladder of factor sets: {EXAMPLES} (default: {AUTO}).")
    group.add_argument("--factors", metavar="FILE", help="Factor file; short for --ladder file:FILE.")
    group.add_argument("--native-window", metavar="TOKENS", help="Window that the model was trained with.")
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
        "--stall-timeout",
        type=seconds(MOST_STALL_SECONDS),
        metavar="SECONDS",
        help="Seconds without a step of the engine, with requests in flight, after which /health/ready is 503, and five "
        "times as many until /health/live is (default: 10 times the longest step so far, at least 60).",
    )
    group.add_argument(
        "--unverified-vllm",
        action="store_true",
        help="Accept a vLLM release without recorded fingerprints; run ropeswitch verify before you trust its answers.",
    )
    group.add_argument("--verbose", action="store_true", help="Print vLLM's own log (default: only progress at start).")
    group = parser.add_argument_group("Length-aware scheduling", "Plan steps by their predicted time.")
    group.add_argument(
        "--length-aware-scheduling",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Plan steps by predicted time and serve short work first and API keys in turn, unlike vLLM's own order.",
    )
    group.add_argument(
        "--step-latency-target",
        type=seconds(MOST_STEP_SECONDS),
        metavar="SECONDS",
        help="Target time of a step while other requests wait; measured at startup unless given.",
    )
    front_flags.add(parser)
    options = variables.read(os.environ)
    parser.set_defaults(**{flag: options[field] for field, flag in _DEFAULTS.items() if field in options})


def ladder(args: argparse.Namespace) -> tuple[Choice | None, int | None, dict[str, str]]:
    """Return the chosen ladder and native window, None for the default.

    Returns:
        Both, from flags or else from environment variables, and the variable of each field that was taken from one.

    Raises:
        FactorError, UsageError: for an invalid ladder, or two.
    """
    given = from_flags(args.ladder, args.factors)
    key: dict[str, Any] = {}
    if args.native_window is not None:
        key["native_window"] = parse_length("--native-window", args.native_window)
    if given is not None:
        key |= {"ladder": given.text} if given.path is None else {"factors": given.path}
    key, names = variables.filled(key, os.environ)
    return from_flags(key.get("ladder"), key.get("factors")), key.get("native_window"), names


def check(args: argparse.Namespace) -> None:
    """Refuse flags that do not go with length-aware scheduling, and its own without it.

    Raises:
        UsageError: naming the flag and what to do.
    """
    chosen = args.length_aware_scheduling
    for flag, given, wanted in (
        ("--step-latency-target", args.step_latency_target is not None, True),
        ("--long-prefill-token-threshold-adaptive", args.long_prefill_token_threshold_adaptive, False),
        # None, the default, lets vLLM choose by model.
        ("--no-enable-chunked-prefill", args.enable_chunked_prefill is False, False),
    ):
        if given and chosen is not wanted:
            other = f"--{'' if wanted else 'no-'}length-aware-scheduling"
            raise UsageError(f"{flag}: needs {other}; leave the flag out, or use that one")
