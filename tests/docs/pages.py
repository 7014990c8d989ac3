"""The project's files and Markdown pages, and the code blocks in the pages."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What git ignores; .git itself is a file in a worktree.
IGNORED = {
    ".git",
    ".venv",
    ".vision",
    ".nixl",
    ".lmcache",
    "__pycache__",
    "build",
    "dist",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def project_files() -> list[Path]:
    """Every file that belongs to the project."""
    tops = [top for top in ROOT.iterdir() if top.name not in IGNORED]
    files = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file()]
    return sorted(file for file in files if not IGNORED & set(file.parts) and ".egg-info" not in str(file))


def pages() -> list[Path]:
    return [file for file in project_files() if file.suffix == ".md"]


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def commands(page: Path, program: str) -> list[list[str]]:
    """The arguments of every command of ``program`` in the page's shell blocks."""
    found = []
    for block in blocks(page, "bash"):
        command = ""
        for line in block.replace("\\\n", " ").splitlines():
            command += line + "\n"
            try:
                words = shlex.split(command, comments=True)
            except ValueError:  # a quotation goes on in the next line
                continue
            command = ""
            if words and Path(words[0]).name == program:
                found.append(words[1:])
        assert not command, f"{page}: unfinished command {command!r}"
    return found
