"""The argument parser of all commands."""

import argparse
from typing import NoReturn

from ropeswitch.factors.errors import UsageError


class Parser(argparse.ArgumentParser):
    """A parser that raises :class:`UsageError` instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
