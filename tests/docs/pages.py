"""The project's files and Markdown pages, and the code blocks in the pages."""

import re
import shlex
import textwrap
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What git ignores; .git itself is a file in a worktree.
IGNORED = {"__pycache__", "build", "dist", ".git", ".venv", ".vision", ".nixl", ".lmcache", ".demo", ".hypothesis"}
IGNORED |= {".mypy_cache", ".pytest_cache", ".ruff_cache"}
# One in a list is indented.
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?")


def project_files() -> list[Path]:
    """Every file that belongs to the project."""
    tops = [top for top in ROOT.iterdir() if top.name not in IGNORED]
    files = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file()]
    return sorted(file for file in files if not IGNORED & set(file.parts) and ".egg-info" not in str(file))


def pages() -> list[Path]:
    return [file for file in project_files() if file.suffix == ".md"]


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [textwrap.dedent(body) for _, kind, body in found if kind == language]


def statements(block: str) -> list[str]:
    """The commands of a shell block with all their lines, comments at the end included; a comment line is one by itself."""
    found, command = [], ""
    for line in block.splitlines(keepends=True):
        command += line
        here = HERE_DOCUMENT.search(command)
        if (here and line.strip() != here[1]) or line.endswith("\\\n"):
            continue
        # An open quotation continues in the next line.
        with suppress(ValueError):
            _words(command)
            found.append(command)
            command = ""
    assert not command, f"unfinished command {command!r}"
    return [each for each in found if each.strip()]


def _words(command: str) -> list[str]:
    joined = command.replace("\\\n", " ")
    return shlex.split(joined.splitlines()[0] if HERE_DOCUMENT.search(joined) else joined, comments=True)


def commands(page: Path, program: str) -> list[list[str]]:
    """The arguments of every command of ``program`` in the page's shell blocks."""
    every = (_words(each) for block in blocks(page, "bash") for each in statements(block))
    return [words[1:] for words in every if words and Path(words[0]).name == program]
