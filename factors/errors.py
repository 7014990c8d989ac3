"""The errors of bad input. Command lines catch the base, print it as one line, and exit with code 2."""


class InputError(Exception):
    """Bad input: a flag, a file, a model or an installation. The message names it, its value and what is allowed."""


class UsageError(InputError):
    """Bad input to a command. The message names the field or flag and its value."""
