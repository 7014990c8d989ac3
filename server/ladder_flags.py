"""Checks ``--allow-ladder-updates`` against the flags that spread requests over several API servers."""

import argparse

from ropeswitch.server.errors import UsageError

# Flags that give each node or rank its own API server.
BALANCED = (
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "data_parallel_multi_port_external_lb",
    "data_parallel_rank",
    "data_parallel_start_rank",
)


def check(args: argparse.Namespace) -> None:
    """Refuse ladder updates if an API server process would miss those that another one receives.

    Args:
        args: Parsed command line and ``--config`` file of ``vllm serve``.

    Raises:
        UsageError: naming the flag, its value and what to do.
    """
    if not args.allow_ladder_updates or args.headless:
        return
    for name in BALANCED:
        # A rank may be 0.
        if (value := getattr(args, name)) is not None and value is not False:
            raise UsageError(
                f"--{name.replace('_', '-')}: {value} gives each rank its own API server, which would miss an update that "
                "another one receives; leave --allow-ladder-updates out"
            )
    # vLLM's default is one for each engine.
    count = args.data_parallel_size if args.api_server_count is None else args.api_server_count
    if count != 1:
        raise UsageError(
            f"--api-server-count: {count} processes: one would miss an update that another one receives; set it to 1, "
            "or leave --allow-ladder-updates out"
        )
