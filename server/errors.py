"""The command line's own error, under the name that the server's modules import it by."""

from ropeswitch.factors.errors import UsageError as UsageError
