"""Re-exports the error class of the command line for the server's modules."""

from ropeswitch.factors.errors import UsageError as UsageError
