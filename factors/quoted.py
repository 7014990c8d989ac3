"""Values for error messages."""

from reprlib import Repr
from typing import Any

_LONGEST = 80
# Looks at no more of a value than is shown, however large or deep it is.
_REPR = Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxtuple, _REPR.maxdict = 4, 40, 40, 20
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = _LONGEST


def quoted(value: Any) -> str:
    """``value`` for an error message, cut to 80 characters, all of them printable."""
    text = _REPR.repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
