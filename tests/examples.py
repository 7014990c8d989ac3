"""How many examples the long property tests draw."""

import os


def examples(count: int) -> int:
    """``count`` in ``make test-full``, which sets ``ALL_EXAMPLES``; a third of it elsewhere."""
    return count if os.environ.get("ALL_EXAMPLES") else count // 3
