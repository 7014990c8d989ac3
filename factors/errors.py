"""Exceptions for bad input. Commands catch the base class, print it as one line, and exit with code 2."""

from collections.abc import Mapping

# How the command line names the fields of a ladder's choice.
FLAGS = {
    "ladder": "--ladder",
    "factors": "--factors",
    "native_window": "--native-window",
    "max_model_len": "--max-model-len",
}


class InputError(Exception):
    """Bad input: a flag, a file, a model or an installation. The message names it, its value and what is allowed."""


class FactorError(InputError, ValueError):
    """A factor file, list or ladder that cannot be served; the message names the field and the value."""


class FieldError(FactorError):
    """A value that is not allowed in a field that has another name at each edge: command line, plugin, variable, HTTP.

    Args:
        field: The field: one of :data:`FLAGS`, or a name that is the same at every edge.
        reason: What is wrong, what is allowed and what to do; other fields in braces, as in "set {max_model_len}".
        values: Values for further names in braces.

    Attributes:
        field: The field.
        reason: What is wrong, with the command line's names for other fields.
    """

    def __init__(self, field: str, reason: str, /, **values: object) -> None:
        self.field, self._reason, self._values = field, reason, values
        super().__init__(self.worded({}))

    @property
    def reason(self) -> str:
        return self._reason.format(**FLAGS, **self._values)

    def worded(self, names: Mapping[str, str]) -> str:
        """Return the message of an edge, with its names of fields where they are not the command line's."""
        words = {**FLAGS, **names}
        return f"{words.get(self.field, self.field)}: {self._reason.format(**words, **self._values)}"


class UsageError(InputError):
    """Bad input to a command. The message names the field or flag and its value."""
