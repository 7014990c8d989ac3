"""Estimates how long vLLM's xgrammar compiles a grammar, which nothing can stop once it has begun.

The weights bound the slowest shapes of docs/benchmarks.md, on one core.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

# Seconds for each schema or format, each further item of a list, each bound of a number and each format of a string.
NODE, ITEM, BOUND = 6.5e-4, 5e-5, 1e-2
# Seconds for each character that is only parsed, and, squared, of each literal: equal beginnings are compared.
CHARACTER, LITERAL = 1e-6, 1.2e-7
# Seconds for the square of an object's optional properties; times its bound on their number, if it has one.
OPTIONAL = 4e-6
# Seconds for each repeated element and token of the vocabulary, and for the square of all repeated elements.
REPEATED, REPEATED_SQUARED = 2.7e-7, 1.7e-7
# Seconds for the squares of a pattern's quantifiers, and of the elements that its repetitions unroll to.
QUANTIFIER, UNROLLED = 3.5e-5, 1.4e-10
# Seconds for the square of the alternatives and rules of a grammar.
RULE = 1.2e-6
# Repetitions beyond this many compile like this many.
MOST = 256
# Repeated elements that do not count with the vocabulary: four bounded strings are honest, though each may take seconds.
FREE = 4 * MOST
# Schema words whose names are the user's; whose numbers bound a value; whose values are literals; that are not compiled.
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "format")
_LITERALS = ("const", "enum", "choice", "begin", "end", "triggers", "excludes", "value", "required")
_TEXTS = ("description", "title", "$comment", "examples", "default", "name")
# An escape, a class, a repetition ({2,5} or Lark's ~2..5), or one character; in a grammar, a literal too.
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\\n])*\]?|(?:\{\s*|~\s*)(\d+)(?:(?:,\s*|\.\.)(\d*))?\s*\}?|.", re.DOTALL)
_GRAMMAR_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"?|' + _TOKEN.pattern, re.DOTALL)


class _Estimate:
    """Sums up one grammar."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.repeated = 0
        # Equal patterns, and strings of equal bounds, are compiled once.
        self.seen: set[object] = set()

    def add(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Count a value, found by its name; yield the values in it."""
        if name in _LITERALS and not isinstance(value, str | list):
            value = json.dumps(value)
        if isinstance(value, str):
            self.seconds += len(value) * CHARACTER
            if name in _LITERALS:
                self.seconds += LITERAL * len(value) ** 2
            elif name in ("regex", "pattern", "grammar"):
                self._pattern(value, name == "grammar")
            elif name in ("json", "structural_tag"):
                with suppress(ValueError, RecursionError):  # vLLM refuses such a text
                    yield "", json.loads(value)
        elif isinstance(value, list):
            self.seconds += ITEM * len(value)
            yield from ((name, each) for each in value)
        elif isinstance(value, dict):
            yield from self._node(value)
        elif name in _BOUNDS and value is not None:
            self.seconds += BOUND

    def _node(self, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        self.seconds += NODE
        properties, required = values.get("properties"), values.get("required")
        if isinstance(properties, dict):
            known = {each for each in required if isinstance(each, str)} if isinstance(required, list) else set()
            bound = max(_numbers(values, "minProperties", "maxProperties"), default=0)
            optional = len(properties) if bound else len(properties.keys() - known)
            self.seconds += OPTIONAL * optional**2 * (1 + min(bound, optional))
        lengths = _numbers(values, "minLength", "maxLength")
        if lengths and (key := tuple(lengths)) not in self.seen:
            self.seen.add(key)
            self.repeated += min(max(lengths), MOST)
        for name, value in values.items():
            if name in _MAPS and isinstance(value, dict):
                for key, each in value.items():
                    yield "pattern" if name == "patternProperties" else "const", key
                    yield "", each
            elif name == "format" and isinstance(value, str):
                self.seconds += BOUND
            else:
                yield name, value

    def _pattern(self, text: str, grammar: bool) -> None:
        if text in self.seen:
            return
        self.seen.add(text)
        groups: list[int] = []
        atom = quantifiers = unrolled = rules = start = 0
        previous = ""
        for match in (_GRAMMAR_TOKEN if grammar else _TOKEN).finditer(text):
            token = match[0]
            if match[1] is not None:
                most = min(max(int(each[:9] or 0) for each in (match[1], match[2] or "")), MOST)
                self.repeated += most
                unrolled += most * atom
            elif token in "*+?":
                quantifiers += 1
            elif token == "(":
                groups.append(match.start())
            elif token == ")":
                atom = match.end() - groups.pop() if groups else 1
                quantifiers += previous == "|"
            elif token in "|\n":
                self.seconds += LITERAL * (match.start() - start) ** 2
                start, rules = match.end(), rules + 1
                quantifiers += previous in ("(", "|", "")
            else:
                atom = len(token) if grammar else 1
            previous = token
        self.seconds += LITERAL * (len(text) - start) ** 2 + QUANTIFIER * quantifiers**2 + UNROLLED * unrolled**2
        self.seconds += RULE * rules**2 if grammar else ITEM * rules


def grammar_seconds(spec: Any, vocabulary: int) -> float:
    """Return the estimated seconds to compile a grammar for a vocabulary of so many tokens, on one core.

    ``spec`` has the fields of vLLM's ``StructuredOutputsParams``, of a response format or of a structural tag.
    """
    estimate, left = _Estimate(), [("", spec)]
    while left:
        left += estimate.add(*left.pop())
    repeated = estimate.repeated
    wide = REPEATED * vocabulary * max(0, repeated - FREE)
    return estimate.seconds + wide + REPEATED_SQUARED * repeated**2


def _numbers(values: dict[str, Any], *names: str) -> list[int]:
    return [values[name] for name in names if isinstance(values.get(name), int)]
