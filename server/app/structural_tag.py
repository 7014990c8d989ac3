"""Bounds the whitespace in the grammars of tool calls, which vLLM's ``disable_any_whitespace`` leaves unlimited.

A forced tool call is decoded under a structural tag, whose JSON schemas allow any whitespace. A small model may fill its
whole answer with it.
"""

import json
from typing import Any


def bound_whitespace(outputs: Any) -> None:
    """Allow at most one whitespace character in a row in the JSON of the tag in a request's ``StructuredOutputsParams``.

    A bound in the tag is kept. An invalid tag stays unchanged, and vLLM refuses it.
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
    if isinstance(node, dict) and node.get("type") == "json_schema":
        # vLLM writes null where it sets no bound; 1 is xgrammar's smallest.
        if node.get("max_whitespace_cnt") is None:
            node["max_whitespace_cnt"] = 1
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            _bound(each)
