"""Rewrites vLLM's error messages, which expose its internals, as sentences for clients."""

import re
from collections.abc import Container

from ropeswitch.server.error_sentences import Wrong, below, details, message_of, without_details

# The field that a message begins with.
_FIELD = re.compile(r"([a-z]\w*(?:\.\w+)*)(?: must be | cannot contain |: )")
# The text of a ``pydantic.ValidationError``, which vLLM returns where it does the validation itself.
_PYDANTIC = re.compile(r"\A\d+ validation errors? for (\S+)\n")
_ERROR = re.compile(
    r"^(?:(?P<loc>\S.*)\n)?  (?P<msg>.*?) \[type=(?P<type>[\w.]+), input_value=(?P<value>.*), input_type=\w+\]",
    re.MULTILINE,
)
# Longer messages contain client input; parsing them would block the event loop.
_LONG = 10_000
# Messages that name no remedy, and their replacements. A message that vLLM has reworded stays as it is.
_MENDED = (
    (
        re.compile(r"There was an error parsing the body"),
        "The body cannot be parsed. Send JSON in UTF-8, without Content-Encoding and nested at most 128 levels deep.",
    ),
    (
        re.compile(r"(Token id -?\d+ is out of vocabulary)"),
        r"prompt: \1. Send token IDs of this model; POST /tokenize returns those of a text.",
    ),
    (
        re.compile(r"(.* is not a multimodal model)"),
        r"\1: it takes text only. Send content as a string, or as parts of type 'text'.",
    ),
    (
        re.compile(r"(.*requires (?:--enable-auto-tool-choice and )?--tool-call-parser to be set)"),
        r"\1. Start the server with these flags, or leave tools out.",
    ),
    (
        re.compile(r"You must use one kind of structured outputs constraint but none are specified: \{.*\}", re.DOTALL),
        "structured_outputs: has no known constraint. Set one of json, regex, choice, grammar, json_object or "
        "structural_tag.",
    ),
    (
        re.compile(r"(max_\w*tokens)=(\d+) cannot be greater than max_model_len=(\d+).*", re.DOTALL),
        # OpenAI's wording, by which litellm recognizes this error.
        r"\1: \2 is too many. This model's maximum context length is \3 tokens, prompt and answer together. "
        "Ask for fewer tokens.",
    ),
)


def mended(message: str, fields: Container[str] = ()) -> tuple[str, str | None]:
    """Return a message of vLLM's as a sentence for the client, and the field that it names, or None.

    Args:
        message: vLLM's message.
        fields: The names of the body's fields; another word at the beginning of a message is not a field.
    """
    if len(message) > _LONG:
        return message, None
    if (title := _PYDANTIC.match(message)) is not None and (errors := list(_ERROR.finditer(message, title.end()))):
        return message_of([_of_text(each, title[1]) for each in errors])
    found = details(message)
    message = without_details(message)
    for pattern, replacement in _MENDED:
        if pattern.fullmatch(message) is not None:
            message = pattern.sub(replacement, message)
    field = found["field"] if found is not None else None
    if field is None and (named := _FIELD.match(message)) is not None and named[1].partition(".")[0] in fields:
        field = named[1]
    return message, field


def _of_text(error: re.Match[str], title: str) -> Wrong:
    """Convert one error of the text. ``ValidatorIterator`` is a chat message's content; types tried look like classes."""
    path = "content" if title == "ValidatorIterator" else ""
    tried: tuple[tuple[str, str], ...] = ()
    # An error of the object as a whole has no path.
    for part in error["loc"].split(".") if error["loc"] else ():
        if part[:1].isupper() or re.search(r"[\[\](){}]|^(?:str|int|list|dict)$", part):
            tried = (*tried, (path, part))
        else:
            path = below(path, int(part) if part.isdecimal() else part)
    return Wrong(error["type"], path, tried, error["value"], error["msg"])
