"""What a PromQL query asks for: as much of the language as the dashboards and alert rules use."""

import re
from dataclasses import dataclass

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[A-Za-z_:][\w:]*|\$\w+|\d[\w.]*|=~|!~|!=|\S')
_OPERATORS = {"and", "or", "unless", "bool"}
_UNREAD = {"without", "on", "ignoring", "group_left", "group_right", "offset"}


@dataclass(frozen=True)
class Selector:
    """A metric, and its matchers as label, operator and value."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Grouping:
    """The labels that an aggregation keeps, and what it aggregates."""

    labels: tuple[str, ...]
    of: tuple[Selector, ...]


@dataclass(frozen=True)
class Query:
    selectors: tuple[Selector, ...]
    groupings: tuple[Grouping, ...]


def parse(query: str) -> Query:
    """Read a query.

    Raises:
        ValueError: for a part of the language that is not read here, such as ``on (...)``.
    """
    tokens = _TOKEN.findall(query)
    found: list[tuple[int, Selector]] = []
    spans: list[tuple[tuple[str, ...], int, int]] = []
    at = 0
    while at < len(tokens):
        token, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        if token in _UNREAD:
            raise ValueError(f"{token!r} in a query is not read here; write the query without it: {query}")
        if token == "by":
            end = _close(tokens, at + 1)
            if tokens[end + 1 : end + 2] != ["("]:
                raise ValueError(f"'by' must stand before what it groups: {query}")
            spans.append((tuple(tokens[at + 2 : end : 2]), end + 1, _close(tokens, end + 1)))
            at = end
        elif re.match(r"[A-Za-z_:]", token) and token not in _OPERATORS and following not in ("(", "by"):
            end = _close(tokens, at + 1) if following == "{" else at
            inner = [part for part in tokens[at + 2 : end] if part != ","]
            parts = zip(inner[::3], inner[1::3], (value.strip('"') for value in inner[2::3]), strict=True)
            found.append((at, Selector(token, tuple(parts))))
            at = end
        at += 1
    groupings = (
        Grouping(labels, tuple(each for place, each in found if first < place < last)) for labels, first, last in spans
    )
    return Query(tuple(each for _, each in found), tuple(groupings))


def _close(tokens: list[str], at: int) -> int:
    """Where the bracket that opens at ``at`` closes."""
    opened = tokens[at]
    closed = {"(": ")", "{": "}"}[opened]
    depth = 0
    for place in range(at, len(tokens)):
        depth += (tokens[place] == opened) - (tokens[place] == closed)
        if depth == 0:
            return place
    raise ValueError(f"{opened!r} is never closed: {' '.join(tokens)}")
