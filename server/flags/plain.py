"""Rewrites pydantic's messages about a flag in the form of our own."""

import re
from collections.abc import Mapping
from typing import Any

from ropeswitch.factors.quoted import quoted

_HEAD = re.compile(r"argument (?P<flag>--[\w-]+)\S*: \d+ validation errors? for \w+\n")
_ERROR = re.compile(
    r"(?:(?P<field>\S+)\n)? {2}(?P<text>.*?) \[type=[\w.]+, input_value=(?P<value>.*?), input_type=\w+\]", re.DOTALL
)
_PREFIX = "Value error, "


def plain(message: str) -> str:
    """Return a message of vLLM's parser with pydantic's errors on one line: field, value and what is allowed.

    Args:
        message: Text of argparse's error; without pydantic's errors, only argparse's word ``argument`` is removed.
    """
    head = _HEAD.match(message)
    if head is None:
        return message.removeprefix("argument ")
    parts = []
    for each in _ERROR.finditer(message, head.end()):
        field = (each["field"] or "").split(".")[0]
        text = each["text"].removeprefix(_PREFIX)
        # An error of the object as a whole names no field.
        parts.append(text if text != each["text"] or not field else f"{field}: {each['value']}: {text}")
    return f"{head['flag']}: {'; '.join(parts)}" if parts else message


def detail_text(detail: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors about vLLM's config as a message about the flag of its field.

    Args:
        detail: An element of ``ValidationError.errors()``.
    """
    text = str(detail["msg"])
    if text.startswith(_PREFIX) or not detail.get("loc"):
        return text.removeprefix(_PREFIX)
    flag = str(detail["loc"][0]).replace("_", "-")
    return f"--{flag}: {quoted(detail.get('input'))}: {text}"
