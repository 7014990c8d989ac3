"""docs/loadtests.md has workload keys, flags and figures as the code has them, and its examples work."""

import argparse
import inspect
import re
import shlex
from pathlib import Path

import yaml

from ropeswitch.loadtests.client import workload as workloads
from ropeswitch.loadtests.client.assertions import STATISTICS, Assertion
from ropeswitch.loadtests.client.cli import add_parser
from tests.docs.made import written
from tests.docs.pages import ROOT, blocks, commands
from tests.loadtests.client import reference_words as words
from tests.loadtests.client.commands import loadtest, results, workload
from tests.loadtests.client.reference import PAGE, TABLES
from tests.loadtests.client.scripted import Scripted, serving

TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(arguments)


def test_the_page_is_as_make_docs_loadtests_writes_it() -> None:
    assert written(TEXT, "docs-loadtests", TABLES) == TEXT, "run make docs-loadtests"
    assert len(re.findall("<!-- \\w+: made by make docs-loadtests -->\n\n\\| ", TEXT)) == 8


def test_every_sentence_is_on_a_key_that_there_is() -> None:
    """The page's test has that every key has a sentence; here none is left over."""
    rows = "\n".join(line for line in TEXT.splitlines() if line.startswith("| `"))
    for table in (words.KEYS, words.LENGTHS, words.RUN, words.OWN_RUN, words.FIGURES, words.OWN_FIGURES):
        for sentence in table.values():
            assert f"| {sentence} |" in rows


def test_the_keys_of_results_are_those_of_a_real_test(tmp_path: Path) -> None:
    with serving(Scripted(limits=(100, 100_000))) as server:
        assert loadtest(tmp_path, workload(tmp_path), server.url, "--slo", "ttft<9") == 0
    found = results(tmp_path)
    [point] = found["points"]
    timed = {f"{statistic}_{name}_ms" for name in words.LATENCIES for statistic in STATISTICS}
    late = {f"{statistic}_{name}_ms" for name in words.LATENESS for statistic in STATISTICS}
    figures = {*words.FIGURES, *words.OWN_FIGURES, *timed, *late}
    assert set(point["target"]) == figures
    assert set(next(iter(point["target"]["bands"].values()))) == figures - {"bands"}
    assert set(found) == {*words.RUN, *words.OWN_RUN, *figures}


def test_the_keys_that_are_called_vllms_are_in_its_results() -> None:
    from vllm.benchmarks import serve

    source = inspect.getsource(serve)
    for key in (*words.FIGURES, *words.RUN):
        assert f'"{key}": ' in source or f'result_json["{key}"]' in source, key
    for name in words.LATENCIES:
        assert f'process_one_metric("{name}"' in source
    assert not any(f'"{key}": ' in source for key in (*words.OWN_FIGURES, "lateness", "points"))


def test_its_commands_are_ones_that_the_parser_takes() -> None:
    used = [each[1:] for each in commands(ROOT / PAGE, "ropeswitch") if each[0] == "loadtest"]
    assert len(used) >= 3
    for arguments in used:
        args = parse(["loadtest", *arguments])
        assert args.workload in workloads.shipped("workload") and args.url
        for text in args.assertions:
            Assertion.parse(text)


def test_its_workload_is_one() -> None:
    [office] = [yaml.safe_load(text) for text in blocks(ROOT / PAGE, "yaml") if text.startswith("name: office")]
    assert workloads.parse(office, "office.yaml").name == "office"


def test_flags_that_the_page_names_are_there() -> None:
    prose = re.sub(r"```.*?```|^\|.*?$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    text = argparse.ArgumentParser()
    subparsers = text.add_subparsers()
    add_parser(subparsers)
    known = set(re.findall(r"--[a-z-]+", subparsers.choices["loadtest"].format_help()))
    ours = {"--max-concurrent-per-key"}
    helm = {"--set", "--set-json", "--show-only", "--wait-for-jobs"}
    named = {
        word.split("=")[0] for code in re.findall(r"`([^`]+)`", prose) for word in shlex.split(code) if word[:2] == "--"
    }
    assert named - ours - helm - {"--timeout", "--wait"} <= known and len(named & known) > 15
