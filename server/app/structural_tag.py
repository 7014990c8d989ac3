"""Bounds the whitespace in the grammars of tool calls, which vLLM's ``disable_any_whitespace`` leaves unlimited.

A forced tool call is decoded under a structural tag, whose JSON schemas allow any whitespace regardless of that setting. A
small model may fill its whole answer with it.
"""

import json
from typing import Any

# xgrammar's smallest bound.
_SPACES = 1


def bound_whitespace(outputs: Any) -> None:
    """Allow at most one whitespace character in a row in the JSON of a request's structural tag.

    A bound in the tag is kept. An invalid tag stays unchanged, and vLLM refuses it.

    Args:
        outputs: The request's ``StructuredOutputsParams``, changed in place.
    """
    if outputs.structural_tag is None:
        return
    try:
        tag = json.loads(outputs.structural_tag)
        _bound(tag)
    except (ValueError, RecursionError):
        return
    outputs.structural_tag = json.dumps(tag)


def _bound(node: Any) -> None:
    """Bound every ``json_schema`` format in a tag; the schemas in them are the user's and stay unchanged."""
    if isinstance(node, list):
        for each in node:
            _bound(each)
    elif isinstance(node, dict):
        if node.get("type") == "json_schema":
            # vLLM writes null where it sets no bound.
            if node.get("max_whitespace_cnt") is None:
                node["max_whitespace_cnt"] = _SPACES
        else:
            for each in node.values():
                _bound(each)
