"""Every command of the pages runs as it is printed, in the page's order, and succeeds, or its mark says what it needs."""

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import IGNORED, ROOT, blocks, pages, statements
from tests.docs.placeholders import fill
from tests.docs.shell import Served, bash, kill
from tests.server.running import START_SECONDS

# Which commands run: all but those that are marked, or that another test runs.
COMMANDS = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text(encoding="utf-8"))
_WHAT = "|".join(COMMANDS["needs"])
_TIME = r"[1-9]\d* (?:minutes|hours)"
MARK = re.compile(rf"# (?:needs (?:{_WHAT})(?:, (?:{_WHAT}))*(?: and (?:{_WHAT}))?|takes {_TIME})(?:: [^\n]+)?\n")
LIKE_A_MARK = re.compile(r"# (?:needs?|takes?)\b[^\n]*\n")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def mark(statement: str) -> str | None:
    """The mark of a command, or of what looks like one; None if there is none."""
    found = LIKE_A_MARK.search(statement)
    return found[0] if found else None


def to_run(page: Path) -> list[str]:
    """The page's blocks without what is marked or run by other tests, in their order; none that is empty."""
    found = []
    for block in blocks(page, "bash"):
        every = statements(block)
        if every[0].startswith("#") and mark(every[0]):
            continue
        text = "".join(
            each for each in every if not mark(each) and not any(part in each for part in COMMANDS["executed_by"])
        )
        for old, new in COMMANDS["substitutions"].get(name(page), {}).items():
            text = text.replace(old, new)
        if text:
            found.append(text)
    return found


# The server of pages that start none.
SHARED = "make serve"
SERVES = re.compile(r"\b(?:make|ropeswitch|vllm) serve\b")
# Pages of the shared server first.
PAGES = sorted(
    (page for page in pages() if to_run(page)),
    key=lambda page: sum(1 for block in to_run(page) if SERVES.search(block) and not block.startswith(SHARED)),
)
ALL = {name(page): page for page in pages()}
EVERY = [(page, each) for page in ALL.values() for block in blocks(page, "bash") for each in statements(block)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    one = Served()
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, whose environments need no further setup."""
    folder = tmp_path_factory.mktemp("tree") / "ropeswitch"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*IGNORED, "*.egg-info"))
    for target, source, stamp in ((".venv", Path(sys.prefix), ".setup-done"), (".vision", ROOT / ".vision", ".done")):
        (folder / target).mkdir()
        for entry in source.iterdir() if source.exists() else ():
            if entry.name != stamp:
                (folder / target / entry.name).symlink_to(entry)
        if source.exists():
            (folder / target / stamp).touch()
    return folder


@pytest.fixture
def place(request: pytest.FixtureRequest, tree: Path, tmp_path: Path) -> Path:
    """A folder with the repository's files, and those that the page's commands name besides."""
    for entry in tree.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    # An answer of 400 or above is an error.
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    fill(tmp_path, name(request.getfixturevalue("page")))
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_run(page: Path, place: Path, served: Served) -> None:
    # The page's own server, once it is started.
    server = SHARED
    for block in to_run(page):
        if SERVES.search(block):
            server = block
            served.need(server, place)
            continue
        if ":8000" in block or "$SERVER_OUTPUT" in block:
            served.need(server, place)
        text = re.sub(r":8000\b", f":{served.port}", block)
        with (place / "commands.out").open("ab") as output:
            shell = bash(text, place, {"SERVER_OUTPUT": str(served.output)}, output)
            try:
                code = shell.wait(START_SECONDS)
            finally:
                kill(shell)
        assert code == 0, f"{text}\nexit code {code}:\n{(place / 'commands.out').read_text()[-4000:]}"


def test_every_command_runs_or_says_what_it_needs() -> None:
    """Blocks in another shell's name, or indented by tabs, would not be run; a misspelt mark would."""
    for page in ALL.values():
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"^\s*```(?:sh|shell|console|zsh)$", text, re.MULTILINE), page
        assert len(re.findall(r"```bash$", text, re.MULTILINE)) == len(blocks(page, "bash")), page
    assert [(page, text) for page, each in EVERY if (text := mark(each)) and not MARK.fullmatch(text)] == []


def test_what_stands_for_a_command_exists() -> None:
    """The other tests that run commands, and the replaced parts of commands."""
    for part, path in COMMANDS["executed_by"].items():
        file, _, test = path.partition("::")
        assert any(part in each for _, each in EVERY), part
        functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        assert test in [each.name for each in functions if isinstance(each, ast.FunctionDef)], path
    for page, parts in COMMANDS["substitutions"].items():
        assert [old for old in parts if old not in "".join(blocks(ALL[page], "bash"))] == []
