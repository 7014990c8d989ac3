"""Compiles the largest grammar of each shape that the server accepts by default, with the bundled model's vocabulary.

``python -m ropeswitch.loadtests.bench.grammar_cost`` prints the estimated seconds, and those that it took.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import xgrammar
from transformers import AutoTokenizer

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server.front.flags import GRAMMAR_SECONDS
from ropeswitch.server.front.limits.grammar import grammar_seconds

TEXT = {"type": "string"}


def _object(count: int, value: Callable[[int], Any] = lambda i: TEXT, required: bool = True, **more: Any) -> Any:
    values = {f"p{i}": value(i) for i in range(count)}
    return {
        "type": "object",
        "properties": values,
        "required": [*values] * required,
        "additionalProperties": False,
        **more,
    }


def _every(value: Any) -> Callable[[int], Any]:
    return lambda _: value


def _limits(i: int) -> Any:
    return {"type": "number", "minimum": -i - 0.5, "maximum": 10**9 + i / 3}


# By size; names of fields as in StructuredOutputsParams.
SHAPES: dict[str, tuple[str, Callable[[int], Any]]] = {
    "required properties": ("json", _object),
    "optional properties": ("json", lambda n: _object(n, required=False)),
    "optional properties, at most 20": ("json", lambda n: _object(n, required=False, maxProperties=20)),
    "alternatives": ("json", lambda n: {"anyOf": [_object(1, _every({"const": i})) for i in range(n)]}),
    "references": (
        "json",
        lambda n: {"$defs": {f"d{i}": _object(2, _every({"$ref": f"#/$defs/d{(i + 1) % n}"})) for i in range(n)}}
        | {"$ref": "#/$defs/d0"},
    ),
    "two equal literals": ("json", lambda n: {"enum": ["a" * n, "a" * n + "b"]}),
    "numbers with limits": ("json", lambda n: _object(n, _limits)),
    "formats": ("json", lambda n: _object(n, lambda i: {"type": "string", "format": ("ipv6", "uri", "duration")[i % 3]})),
    "bounded strings": ("json", lambda n: _object(n, lambda i: {"type": "string", "maxLength": 300 + i})),
    "patterns": ("json", lambda n: _object(n, lambda i: {"type": "string", "pattern": f"^[a-z]{{1,{100 + i}}}$"})),
    "quantifiers": ("regex", lambda n: "[^a]*" * n),
    "repeated classes": ("regex", lambda n: "".join(f".{{1,{100 + i}}}-" for i in range(n))),
    "repeated group": ("regex", lambda n: "(" + "abcdefghij" * n + "){1,256}"),
    "rules": ("grammar", lambda n: "root ::= " + " | ".join(f"r{i}" for i in range(n)) + "".join(
        f'\nr{i} ::= "a{i}" root | [b-z]' for i in range(n))),
}  # fmt: skip


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    print(f"{'shape':32} {'size':>6} {'bytes':>7} {'estimated':>9} {'seconds':>8}")
    for name, (field, shape) in SHAPES.items():
        low, high = 1, 1 << 14
        while low < high:
            middle = (low + high + 1) // 2
            fits = grammar_seconds({field: shape(middle)}, info.vocab_size) <= GRAMMAR_SECONDS
            low, high = (middle, high) if fits else (low, middle - 1)
        text = json.dumps(shape(low)) if field == "json" else shape(low)
        compiler = xgrammar.GrammarCompiler(info, max_threads=8)
        begun = time.perf_counter()
        try:
            if field == "json":
                compiler.compile_json_schema(text, any_whitespace=False, separators=(",", ":"))
            else:
                (compiler.compile_regex if field == "regex" else compiler.compile_grammar)(text)
            took = f"{time.perf_counter() - begun:8.2f}"
        except RuntimeError as error:
            took = f"refused by xgrammar: {str(error)[:60]}"
        print(
            f"{name:32} {low:6} {len(text):7} {grammar_seconds({field: shape(low)}, info.vocab_size):9.2f} {took}",
            flush=True,
        )


if __name__ == "__main__":
    main()
