"""Client libraries as their users call them, against the bundled model and that of `make demo`, and docs/clients.md."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeswitch.models.demo.__main__ import NAME
from ropeswitch.models.demo.convert import convert
from ropeswitch.models.demo.source import SMOLLM2, fetch
from tests.clients.client import CLIENTS, KEY, SECONDS, Client, Served, check_names, prepare, results, serving
from tests.docs.pages import ROOT, blocks
from tests.models.demo.test_served import FOLDER

PAGE = ROOT / "docs" / "clients.md"
BUNDLED = "longrope-mini"
PROMPT_LIMIT = 2000
DEMO_LIMIT = 32768
LANGUAGES = {"openai-node": "javascript"}
each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limit = ["--max-prompt-tokens", str(PROMPT_LIMIT)]
    with serving(tmp_path_factory.mktemp("bundled"), BUNDLED, PROMPT_LIMIT, *limit) as served:
        yield served


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    FOLDER.mkdir(exist_ok=True)
    convert(fetch(SMOLLM2, FOLDER, print), FOLDER / NAME, print)
    flags = [str(FOLDER / NAME), "--served-model-name", NAME, "--max-model-len", str(DEMO_LIMIT)]
    with serving(tmp_path_factory.mktemp("demo"), NAME, DEMO_LIMIT, *flags) as served:
        yield served


def assert_passes(client: Client, served: Served, folder: Path) -> None:
    found = results(client, served, folder)
    assert list(found) == check_names(client)
    failed = {name: error for name, error in found.items() if error is not None}
    assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())


@pytest.mark.full
@each_client
def test_a_client_with_the_bundled_model(client: Client, bundled: Served, tmp_path: Path) -> None:
    assert_passes(client, bundled, tmp_path)


@pytest.mark.full
@each_client
def test_the_code_of_the_page_runs(client: Client, bundled: Served, tmp_path: Path) -> None:
    """As it is printed, but for the address and the key."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {client.name}\n")[1].split("\n## ")[0]
    shown = [code for code in blocks(PAGE, LANGUAGES.get(client.name, "python")) if code in section]
    assert shown
    for code in shown:
        assert "http://127.0.0.1:8000" in code and '"none"' in code
        program = prepare(client, tmp_path)
        program.write_text(code.replace("http://127.0.0.1:8000", bundled.server.url).replace('"none"', f'"{KEY}"'))
        command = [str(client.runner), str(program)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.full
@each_client
def test_a_client_with_the_demo_model(client: Client, demo: Served, tmp_path: Path) -> None:
    assert_passes(client, demo, tmp_path)


def test_the_table_of_the_page_lists_what_is_checked() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| every client(?: but ([\w-]+))? \| (.+) \|$", text, re.MULTILINE)
    assert {but for but, _ in rows} <= {"", *(client.name for client in CLIENTS)}
    for client in CLIENTS:
        names = [what for but, works in rows if but != client.name for what in works.split(", ")]
        assert names and sorted(names) == sorted(check_names(client)), client.name


def test_every_version_of_the_page_is_the_pinned_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    pins = dict(
        line.split("==")
        for lock in ("clients.lock", "cpu.lock")
        for line in (ROOT / "requirements" / lock).read_text().splitlines()
        if ";" not in line
    )
    for name, package in (
        ("openai-python", "openai"),
        ("anthropic", "anthropic"),
        ("litellm", "litellm"),
        ("langchain-openai", "langchain-openai"),
    ):
        assert f"{name} {pins[package]}" in text
    [node] = re.findall(r'"openai": "([\d.]+)"', (ROOT / "requirements" / "node" / "package.json").read_text())
    assert f"openai-node {node}" in text
