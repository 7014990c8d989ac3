"""The ``ropeswitch`` command.

Imports nothing heavy, so help and the light commands respond at once. Only a server that actually starts loads the engine.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ropeswitch.factors.errors import InputError
from ropeswitch.factors.parser import Parser
from ropeswitch.server.start.refusals import end_with_parent

PROGRAM = "ropeswitch"
# A process that the server spawns imports this module first, long before it loads vLLM's plugins.
end_with_parent()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 2 for bad input, with one line on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["serve"]:
            from ropeswitch.server.start.serve import serve

            return serve(arguments[1:])
        args = _make_parser().parse_args(arguments)
        return int(args.func(args))
    except (InputError, OSError) as error:
        print(f"{PROGRAM}: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 2
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print(f"{PROGRAM}: error: plots need matplotlib; run: pip install 'ropeswitch[plots]'", file=sys.stderr)
        return 2


def _make_parser() -> argparse.ArgumentParser:
    from ropeswitch.deploy.plan import cli as plan
    from ropeswitch.factors import cli as factors
    from ropeswitch.loadtests.client import cli as loadtest
    from ropeswitch.loadtests.verify import cli as verify
    from ropeswitch.model_patches.guard import cli as patches
    from ropeswitch.server.patches import SERVER_PATCHES

    description = "Serve RoPE models with the LongRoPE factors for each request's length."
    parser: argparse.ArgumentParser = Parser(prog=PROGRAM, description=description)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version(PROGRAM)}, {_engine()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    # Parsed by serve.py: its flags are vLLM's, which take seconds to load. Listed here only for the help.
    commands.add_parser("serve", help="start an OpenAI-compatible server", add_help=False)
    plan.add_parser(commands)
    factors.add_parser(commands)
    patches.add_parser(commands, SERVER_PATCHES)
    loadtest.add_parser(commands)
    verify.add_parser(commands)
    return parser


def _engine() -> str:
    from ropeswitch.model_patches.switch.releases import described

    try:
        return described()
    except InputError:
        return "no vLLM"  # the planner and the load test need none


if __name__ == "__main__":
    sys.exit(main())
