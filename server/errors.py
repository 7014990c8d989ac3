"""The command line's own error. It imports nothing, so that every module can raise it."""


class UsageError(Exception):
    """Bad input to a command: printed as one line, exit code 2. The message names the field or flag and its value."""
