"""Describes the errors in a request's body as sentences: the field, the value that was sent, and the allowed values."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Maximum characters of a value or a name in a message, sentences in a message, and errors of a body that are read for it.
CHARACTERS = 80
MOST = 3
_READ = 1000
# Characters kept at each end of a validator's message; pydantic's may have a long text of the client's in the middle.
_END = 250
# Maximum fields of an object, items of a list and nesting levels to show.
_FIELDS, _ITEMS, _DEPTH = 3, 8, 3
_MUST_BE = "Input should be "
# pydantic's descriptions of types, and plain words for them. The first match is used.
_TYPES = (
    (re.compile(r"a valid (?:dictionary|mapping).*|an? (?:object|instance of).*"), "an object"),
    (re.compile(r"a valid (?:list|array|iterable|tuple|sequence).*|iterable"), "a list"),
    (re.compile(r"a valid string.*"), "a string"),
    (re.compile(r"a valid integer.*"), "a whole number"),
    (re.compile(r"a valid number.*"), "a number"),
    (re.compile(r"a valid boolean.*"), "true or false"),
    (re.compile(r"greater than or equal to (.*)"), r"at least \1"),
    (re.compile(r"less than or equal to (.*)"), r"at most \1"),
)
_PREFIX = re.compile(r"\A(?:Value error|Assertion failed), ")
# The suffix that vLLM adds to the message of a ``VLLMValidationError``.
_DETAILS = re.compile(r" \((?:parameter=(?P<field>[^ ,()]+))?(?:, )?(?:value=(?P<value>.*))?\)\Z", re.DOTALL)


@dataclass(frozen=True)
class Wrong:
    """One error in a request's body.

    Attributes:
        kind: pydantic's type of the error.
        path: The field, such as ``messages[0].role``; empty for the whole body.
        tried: The fields on the path that allow several types, outermost first, each with the type that was tried.
        value: The value as text.
        message: pydantic's message.
    """

    kind: str
    path: str
    tried: tuple[tuple[str, str], ...]
    value: str
    message: str

    @property
    def allowed(self) -> list[str]:
        """The values that the field allows; empty if the message does not list them."""
        if not self.message.startswith(_MUST_BE):
            return []
        rest = self.message.removeprefix(_MUST_BE)
        if self.kind == "literal_error":
            return re.findall(r"'[^']*'", rest) or [rest]
        return [next((pattern.sub(plain, rest) for pattern, plain in _TYPES if pattern.fullmatch(rest)), rest)]


def describe(errors: Sequence[Mapping[str, Any]], body: Any) -> tuple[str, str | None]:
    """Describe validation errors of a request.

    Args:
        errors: At least one, in the form of ``pydantic.ValidationError.errors``.
        body: The body's JSON values; a ``loc`` that begins with ``body`` is a path into them.

    Returns:
        A message of at most :data:`MOST` sentences, and the first wrong field's path, None for the whole body.
    """
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = (first.get("ctx") or {}).get("error", first["msg"])
        return f"The body is not valid JSON: {reason} at character {first['loc'][-1]}.", None
    return message_of([_wrong(each, body) for each in errors[:_READ]])


def _wrong(error: Mapping[str, Any], body: Any) -> Wrong:
    """Convert an error of pydantic's; its ``loc`` also names the types tried, which are not keys or indexes of the body."""
    loc = list(error["loc"])
    if not loc or loc[0] != "body":
        return Wrong(error["type"], ".".join(map(str, loc)), (), shown(error.get("input")), str(error["msg"]))
    path, value = "", body
    tried: tuple[tuple[str, str], ...] = ()
    for part in loc[1:]:
        if part in value if isinstance(value, Mapping) else _is_index(part, value):
            path, value = below(path, part), value[part]
        elif error["type"] == "missing" and part == loc[-1]:
            path = below(path, part)
        else:
            tried = (*tried, (path, str(part)))
    return Wrong(error["type"], path, tried, shown(value), str(error["msg"]))


def _is_index(part: str | int, value: object) -> bool:
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def below(path: str, part: str | int) -> str:
    """Return the path of an item or field of the value at a path."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    part = part[:CHARACTERS]
    return f"{path}.{part}" if path else part


def message_of(wrong: Sequence[Wrong]) -> tuple[str, str | None]:
    """Return a message of at most :data:`MOST` sentences, and the first wrong field's path, None for the whole body."""
    meant = {id(each) for each in _meant(wrong)}
    kept = [each for each in wrong if id(each) in meant]
    allowed: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for each in kept:
        allowed[each.path] |= dict.fromkeys(each.allowed)
    sentences = list(dict.fromkeys(_sentence(each, list(allowed[each.path])) for each in kept))
    more = len(sentences) - MOST
    tail = f" {more} more {'field is' if more == 1 else 'fields are'} wrong." if more > 0 else ""
    return " ".join(sentences[:MOST]) + tail, kept[0].path or None


def _sentence(wrong: Wrong, allowed: Sequence[str]) -> str:
    field = wrong.path or "body"
    if wrong.kind == "missing":
        return f"{field}: missing; " + (
            "this field is required." if wrong.path else "this request needs a JSON object."
        )
    if wrong.allowed:
        either = f"{', '.join(allowed[:-1])} or {allowed[-1]}" if len(allowed) > 1 else allowed[0]
        return f"{field}: {wrong.value} must be {either}."
    if wrong.kind == "extra_forbidden":
        return f"{field}: unknown field; leave it out."
    text = _short(without_details(_PREFIX.sub("", wrong.message)).rstrip("."))
    if text.startswith("Input should "):
        return f"{field}: {wrong.value} must {text.removeprefix('Input should ')}."
    if not wrong.path:
        return f"{text}."
    if text.startswith(wrong.path.rpartition(".")[2]):
        return f"{text}; got {wrong.value}."
    return f"{field}: {wrong.value}: {text}."


def _meant(wrong: Sequence[Wrong], depth: int = 0) -> list[Wrong]:
    """Drop the errors of types that the client did not mean, where a value allows several types.

    Args:
        wrong: Errors with the same first ``depth`` entries in ``tried``.
    """
    kept = [each for each in wrong if len(each.tried) <= depth]
    fields: defaultdict[str, defaultdict[str, list[Wrong]]] = defaultdict(lambda: defaultdict(list))
    for each in wrong:
        if len(each.tried) > depth:
            field, name = each.tried[depth]
            fields[field][name].append(each)
    for field, types in fields.items():
        told_apart_by = [{each.path for each in errors if each.kind == "literal_error"} for errors in types.values()]
        if common := set.intersection(*told_apart_by):
            kept += [each for errors in types.values() for each in errors if each.path in common]
            continue
        misfits = {name: _misfit(errors, field) for name, errors in types.items()}
        least = min(misfits.values())
        for name, errors in types.items():
            if misfits[name] == least:
                kept += _meant(errors, depth + 1)
    return kept


def _misfit(errors: Sequence[Wrong], field: str) -> tuple[int, int, int]:
    """Rate how far a value is from one of the types that its field allows; the lowest result is the type that was meant."""
    whole = any(each.path == field for each in errors)
    lacks = sum({"literal_error": 1, "missing": 2}.get(each.kind, 0) for each in errors)
    return int(whole), lacks, len(errors) if lacks else 0


def shown(value: Any) -> str:
    """Return a JSON value as text for a message: whole, truncated if it is long, or only its size."""
    if isinstance(value, Mapping) and len(value) > _FIELDS:
        return f"an object of {len(value)} fields"
    if isinstance(value, list) and len(value) > _ITEMS:
        return f"a list of {len(value)} items"
    if isinstance(value, str) and len(value) > CHARACTERS:
        return f"{json.dumps(value[:CHARACTERS])}... ({len(value)} characters)"
    text = json.dumps(_small(value, _DEPTH), default=str)
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}..."


def _small(value: Any, depth: int) -> Any:
    """Return a value with long parts truncated, because serializing all of a long one would block the event loop."""
    if isinstance(value, Mapping):
        few = list(value.items())[:_FIELDS] if depth else ()
        return {str(name)[:CHARACTERS]: _small(each, depth - 1) for name, each in few}
    if isinstance(value, list):
        return [_small(each, depth - 1) for each in value[:_ITEMS]] if depth else []
    return value[:CHARACTERS] if isinstance(value, str) else value


def _short(message: str) -> str:
    return message if len(message) <= 2 * _END else f"{message[:_END]}...{message[-_END:]}"


def details(message: str) -> re.Match[str] | None:
    """Match ``(parameter=..., value=...)`` at a message's end, with the groups ``field`` and ``value``; None without it."""
    # Without the closing parenthesis the pattern would fail at every position, each time after scanning to the end.
    return _DETAILS.search(message) if message.endswith(")") else None


def without_details(message: str) -> str:
    """Return one of vLLM's messages without a final ``(parameter=..., value=...)``, keeping a value found only there."""
    found = details(message)
    if found is None or not any(found.groups()):
        return message
    start, value = message[: found.start()], found["value"]
    if value is None or value in start:
        return start
    return f"{start.rstrip('.')}; got {value[:CHARACTERS]}."
