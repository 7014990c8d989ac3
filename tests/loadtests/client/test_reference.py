"""docs/loadtests.md has workload keys and figures as the code has them, and its examples work."""

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ropeswitch.loadtests.client import workload as workloads
from ropeswitch.loadtests.client.assertions import LATENCIES, NUMBERS, STATISTICS
from ropeswitch.loadtests.client.cli import add_parser
from ropeswitch.loadtests.client.lengths import Length
from ropeswitch.loadtests.client.pieces import Text
from ropeswitch.loadtests.client.workload import Workload
from tests.docs.pages import ROOT, blocks
from tests.loadtests.client.commands import loadtest, results, workload
from tests.loadtests.client.scripted import Scripted, serving

PAGE = ROOT / "docs" / "loadtests.md"
TEXT = PAGE.read_text(encoding="utf-8")


def rows(*head: str) -> list[list[str]]:
    """The rows of all tables of the page whose header begins like this, without backquotes in the first cell."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE):
        cells = [
            [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.replace(" |\n", "\n").splitlines()
        ]
        cells = [[cell.removeprefix("| ") for cell in line] for line in cells]
        if tuple(cells[0][: len(head)]) == head:
            found += [[line[0].strip("`"), *line[1:]] for line in cells[2:]]
    return found


def flags() -> argparse.ArgumentParser:
    commands = argparse.ArgumentParser().add_subparsers()
    add_parser(commands)
    parser: argparse.ArgumentParser = commands.choices["loadtest"]
    return parser


def keys(schema: Mapping[str, Any], classes: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Path of every key of a workload file."""
    for name, field in schema["properties"].items():
        yield path + name
        options = [field, *field.get("anyOf", ()), *([field["items"]] if "items" in field else [])]
        for of in (each["$ref"].rsplit("/", 1)[1] for each in options if "$ref" in each):
            if of != "Length":
                yield from keys(classes[of], classes, f"{path}{name}{'[]' if 'items' in field else ''}.")


def test_the_page_lists_every_key_length_text_and_shipped_workload() -> None:
    schema = Workload.model_json_schema()
    assert [row[0] for row in rows("Key", "Value")] == list(keys(schema, schema["$defs"]))
    assert [row[0].partition(":")[0] for row in rows("Length")] == list(Length.model_fields)
    assert [row[0] for row in rows("Key", "Meaning")] == list(Text.model_fields)
    shipped = {row[0]: row[1] for row in rows("Name", "What it is")}
    assert shipped == {name: workloads.load(name).about for name in workloads.shipped("workload")}


def test_the_keys_of_results_are_those_of_a_real_test(tmp_path: Path) -> None:
    with serving(Scripted(limits=(100, 100_000))) as server:
        assert loadtest(tmp_path, workload(tmp_path), server.url, "--slo", "ttft<9") == 0
    found = results(tmp_path)
    [point] = found["points"]
    listed = {row[0] for row in (*rows("vLLM's key"), *rows("Added key"))}
    listed |= {key.replace("STAT", each) for key in listed if "STAT" in key for each in STATISTICS}
    listed = {key for key in listed if "STAT" not in key}
    assert set(found) == listed
    assert set(point["target"]) < listed and set(point["target"]) - {"bands"} == set(
        next(iter(point["target"]["bands"].values()))
    )


def test_the_page_lists_every_figure_of_an_assertion() -> None:
    [listed] = re.findall(r"^FIGURE is (.*?)\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert {*NUMBERS, *LATENCIES} <= set(re.findall(r"`(\w+)`", listed))
    [statistics] = re.findall(r"^`results.json` uses .*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert set(STATISTICS) <= set(re.findall(r"`(\w+)`", statistics))


def test_its_workload_is_one() -> None:
    [office] = [yaml.safe_load(text) for text in blocks(PAGE, "yaml") if text.startswith("name: office")]
    assert workloads.parse(office, "office.yaml").name == "office"


def test_flags_that_the_page_names_are_there() -> None:
    prose = re.sub(r"```.*?```|^\|.*?$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    known = set(re.findall(r"--[a-z-]+", flags().format_help()))
    ours = {"--max-sequences-per-key"}
    helm = {"--set", "--set-json", "--show-only", "--wait-for-jobs"}
    named = {
        word.split("=")[0] for code in re.findall(r"`([^`]+)`", prose) for word in shlex.split(code) if word[:2] == "--"
    }
    assert named - ours - helm - {"--timeout", "--wait"} <= known and len(named & known) > 15
