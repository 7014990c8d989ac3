"""Exceptions for bad input. Commands catch the base class, print it as one line, and exit with code 2."""


class InputError(Exception):
    """Bad input: a flag, a file, a model or an installation. The message names it, its value and what is allowed."""


class FactorError(InputError, ValueError):
    """A factor file, list or ladder that cannot be served; the message names the field and the value."""


class UsageError(InputError):
    """Bad input to a command. The message names the field or flag and its value."""
