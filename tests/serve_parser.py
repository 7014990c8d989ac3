"""vLLM's parser of ``vllm serve``, with our flags or without, for the commands in pages and files."""

from functools import cache
from typing import Any

from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.start import flags


@cache
def serve_parser(*, ours: bool = True) -> Any:
    """Return the parser; a value that vLLM would refuse raises ``UsageError``."""
    parser = vllm_adapter.stock_parser()
    if ours:
        flags.add(parser)
    return parser
