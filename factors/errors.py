"""Exceptions for bad input. Commands catch the base class, print it as one line, and exit with code 2."""

import re
from collections.abc import Mapping

# How the command line names the fields of a ladder's choice.
FLAGS = {
    "ladder": "--ladder",
    "factors": "--factors",
    "native_window": "--native-window",
    "max_model_len": "--max-model-len",
}
# A name in braces, with a conversion or a format.
_BRACES = re.compile(r"\{(\w+)(?:![rsa])?(?::[^{}]*)?\}")


class InputError(Exception):
    """Bad input: a flag, a file, a model or an installation. The message names it, its value and what is allowed."""


class FactorError(InputError, ValueError):
    """A factor file, list or ladder that cannot be served; the message names the field and the value."""


class FieldError(FactorError):
    """A value that is not allowed in a field that has another name at each edge: command line, plugin, variable, HTTP.

    ``field`` is one of :data:`FLAGS`, or a name that is the same at every edge. ``reason`` says what is wrong, what is
    allowed and what to do, with names in braces, as in "{value} needs {max_model_len}": a value's, or one of :data:`FLAGS`.
    """

    def __init__(self, field: str, reason: str, /, **values: object) -> None:
        super().__init__(field, reason)  # all that unpickling passes on; attributes follow by themselves
        self.field, self._reason, self._values = field, reason, values

    def __str__(self) -> str:
        return self.worded({})

    @property
    def reason(self) -> str:
        """What is wrong, with the command line's names for other fields."""
        return self._filled(FLAGS)

    def worded(self, names: Mapping[str, str]) -> str:
        """Return the message of an edge, with its names of fields where they are not the command line's."""
        words = {**FLAGS, **names}
        return f"{words.get(self.field, self.field)}: {self._filled(words)}"

    def _filled(self, words: Mapping[str, str]) -> str:
        known = {**words, **self._values}
        return _BRACES.sub(lambda it: it[0].format(**known) if it[1] in known else it[0], self._reason)


class UsageError(InputError):
    """Bad input to a command. The message names the field or flag and its value."""
