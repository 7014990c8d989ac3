"""Rewrites pydantic's messages about a flag in the form of our own."""

import re

from ropeswitch.server.upstream_messages import mended

_HEAD = re.compile(r"argument (?P<flag>--[\w-]+)\S*: (?=\d+ validation errors? for )")


def plain(message: str) -> str:
    """Return a message of vLLM's parser with pydantic's errors as sentences: field, value and what is allowed.

    Args:
        message: Text of argparse's error; without pydantic's errors, only argparse's word ``argument`` is removed.
    """
    head = _HEAD.match(message)
    if head is None:
        return message.removeprefix("argument ")
    sentences, _ = mended(message[head.end() :])
    return f"{head['flag']}: {sentences}"
