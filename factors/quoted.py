"""Formats values for error messages."""

from reprlib import Repr
from typing import Any

_LONGEST = 80
# Visits only the part of a value that is shown, however large or deep the value is.
_REPR = Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxtuple, _REPR.maxdict = 4, 40, 40, 20
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = _LONGEST


def quoted(value: Any) -> str:
    """Format ``value`` for an error message: printable, at most 80 characters."""
    text = _REPR.repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
