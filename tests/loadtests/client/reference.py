"""``make docs-loadtests``: writes the tables of ``docs/loadtests.md`` from the code."""

import argparse
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from ropeswitch.loadtests.client import workload as workloads
from ropeswitch.loadtests.client.assertions import LATENCIES, NUMBERS, STATISTICS
from ropeswitch.loadtests.client.cli import add_parser
from ropeswitch.loadtests.client.lengths import LONGEST, Length
from ropeswitch.loadtests.client.pieces import Text
from ropeswitch.loadtests.client.workload import Workload
from tests.docs.made import Tables, table, write
from tests.loadtests.client import reference_words as words

PAGE = Path("docs/loadtests.md")
Schema = Mapping[str, Any]


def _keys() -> str:
    schema = Workload.model_json_schema()
    rows = ((f"`{path}`", *rest) for path, *rest in _below(schema, schema["$defs"], ""))
    return table(("Key", "Value", "Default", "Meaning"), rows)


def _below(schema: Schema, classes: Schema, path: str) -> Iterator[tuple[str, str, str, str]]:
    """Path, values, default and meaning of every key of a mapping, and of those below it."""
    attributes = _attributes(Workload) if not path else {}
    for name, given in schema["properties"].items():
        where = path + name
        field = _filled(given)
        of = field.get("$ref", "").rsplit("/", 1)[-1]
        below = classes[of] if of and of != "Length" else None
        default = _default(given) if name not in schema.get("required", ()) else "needed"
        sentences = [attributes[name]] if name in attributes else []
        sentences += [_sentences(below["description"])] if below else []
        meaning = ". ".join(sentences) or _meaning(where)
        yield where, _values(field, below), default, meaning
        if field.get("type") == "array" and "$ref" in field["items"]:
            below, where = classes[field["items"]["$ref"].rsplit("/", 1)[1]], f"{where}[]"
        if below:
            yield from _below(below, classes, f"{where}.")


def _filled(field: Schema) -> Schema:
    """What a field is where it is not null."""
    options = [each for each in field.get("anyOf", ()) if each.get("type") != "null"]
    return {**field, **options[0]} if options else field


def _values(field: Schema, below: Schema | None) -> str:
    if below:
        return "mapping"
    if "$ref" in field:
        return "[length](#lengths)"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field.get("le") == LONGEST:
        return "tokens"
    match field["type"]:
        case "boolean":
            return "`true` or `false`"
        case "array":
            return "list"
        case "string":
            return "name" if "pattern" in field else "text"
    least = f"above {field['exclusiveMinimum']:,}," if "exclusiveMinimum" in field else f"from {field['minimum']:,}"
    return f"{'number' if field['type'] == 'number' else 'whole number'} {least} to {field['maximum']:,}"


def _default(field: Schema) -> str:
    default = field.get("default")
    if default is None or default in ("", [], ()):
        return ""
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`".lower()


def _attributes(described: type) -> dict[str, str]:
    """What a class's docstring says of its attributes."""
    _, _, text = (inspect.getdoc(described) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: _sentences(" ".join(meaning.split())) for name, meaning in found}


def _meaning(path: str) -> str:
    return words.KEYS[re.sub(r"^arrival\.|^mix\[\]\.(?=\w+\.)", "", path)]


def _lengths() -> str:
    rows = []
    for name, field in Length.model_fields.items():
        [shape] = [each for each in get_args(field.annotation) if each is not type(None)]
        keys = getattr(shape, "model_fields", None)
        meaning = words.LENGTHS.get(name) or _sentences(inspect.getdoc(shape) or "")
        inside = ", ".join(f"{key}: {_example(key)}" for key in sorted(keys, key=_order)) if keys else "8k"
        rows.append((f"`{name}: {{{inside}}}`" if keys else f"`{name}: {inside}`", meaning))
    return table(("Length", "Meaning"), rows)


def _order(key: str) -> int:
    return ("median", "sigma", "min", "max", "shape", "within", "at").index(key)


def _example(key: str) -> str:
    return {"median": "500", "sigma": "1.0", "min": "100", "max": "8k", "shape": "0.8", "within": "32", "at": "8k"}[key]


def _texts() -> str:
    return table(("Key", "Meaning"), ((f"`{key}`", meaning) for key, meaning in _attributes(Text).items()))


def _shipped() -> str:
    rows = []
    for name in workloads.shipped("workload"):
        found = workloads.load(name)
        [(process, given)] = found.arrival.model_dump(exclude_none=True).items()
        arrival = ", ".join(f"{key} {value:g}" for key, value in given.items() if value)
        ends = [f"{found.requests} requests"] if found.requests else []
        ends += [f"{found.seconds:g} s"] if found.seconds else []
        rows.append((f"`{name}`", found.about, f"{process}: {arrival}", ", ".join(ends), _longest(found)))
    return table(("Name", "What it is", "Arrival", "Ends after", "Longest prompt"), rows)


def _longest(workload: Workload) -> str:
    """Of all prompts that may be drawn; the last switch of factor sets for those that end before one."""
    most = 0
    for part in workload.mix:
        assert part.prompt is not None, "a trace, which has its own lengths, is not shipped"
        if part.prompt.crossing:
            return "the last switch"
        most = max(most, _most(part.prompt) + ((part.turns.count - 1) * _most(part.turns.grow) if part.turns else 0))
    return f"{most:,}"


def _most(length: Length) -> int:
    [(name, value)] = length.model_dump(exclude_none=True).items()
    return int(value if name == "fixed" else value["max"])


def _flags() -> str:
    commands = argparse.ArgumentParser().add_subparsers()
    add_parser(commands)
    rows = [
        (
            f"`{flag.option_strings[-1]}{f' {flag.metavar or flag.dest.upper()}' if flag.nargs != 0 else ''}`",
            flag.help or "",
        )
        for flag in commands.choices["loadtest"]._actions
        if flag.option_strings and flag.dest != "help"
    ]
    return table(("Flag", "Meaning"), rows)


def _figures() -> str:
    upstream, own = "vLLM's", "added"
    timed = [(f"`STAT_{name}_ms`", upstream, text) for name, text in words.LATENCIES.items()]
    late = [(f"`STAT_{name}_ms`", own, text) for name, text in words.LATENESS.items()]
    given = [(f"`{key}`", upstream, text) for key, text in words.FIGURES.items()]
    added = [(f"`{key}`", own, text) for key, text in words.OWN_FIGURES.items()]
    return table(("Key", "Whose", "Meaning"), [*given, *timed, *late, *added])


def _results() -> str:
    upstream = [(f"`{key}`", "vLLM's", text) for key, text in words.RUN.items()]
    own = [(f"`{key}`", "added", text) for key, text in words.OWN_RUN.items()]
    return table(("Key", "Whose", "Meaning"), [*upstream, *own])


def _assertions() -> str:
    every, statistics = (" or ".join(f"`{each}`" for each in names) for names in (LATENCIES, (*STATISTICS, "p50")))
    rows = [(f"`{name}`", f"`{key}`") for name, key in NUMBERS.items()]
    rows.append(
        ("`LATENCY_STAT`", f"`STAT_LATENCY_ms`, in seconds. LATENCY is {every}; STAT is {statistics}, the median")
    )
    return table(("Figure", "In `results.json`"), rows)


def _sentences(text: str) -> str:
    """The first paragraph of a docstring as it stands in a table."""
    return " ".join(text.split("\n\n")[0].replace("``", "`").split()).rstrip(".")


TABLES: Tables = {
    "keys": _keys,
    "lengths": _lengths,
    "texts": _texts,
    "shipped": _shipped,
    "flags": _flags,
    "figures": _figures,
    "results": _results,
    "assertions": _assertions,
}


if __name__ == "__main__":
    write(PAGE, "docs-loadtests", TABLES)
