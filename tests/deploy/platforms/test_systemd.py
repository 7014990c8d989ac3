"""deploy/systemd: what systemd says of the unit, and what it starts."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from ropeswitch.model_patches.switch.config import variables
from tests.deploy.platforms.rendered import FILES
from tests.serve_parser import serve_parser

FOLDER = FILES / "systemd"
# systemd's own measure, from 0 (confined) to 10; it calls up to 4.9 "OK".
MOST_EXPOSED = 2.5


def unit() -> list[tuple[str, str]]:
    lines = (FOLDER / "ropeswitch.service").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and line[0] not in "#["]
    return [(name, value) for name, _, value in pairs]


def variables_of_the_file() -> dict[str, str]:
    lines = (FOLDER / "ropeswitch.env").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def test_it_starts_the_server_with_the_file_s_variables() -> None:
    found = dict(unit())
    chosen = variables_of_the_file()
    program, command, *words = shlex.split(found["ExecStart"])
    assert (program, command) == ("/opt/ropeswitch/bin/ropeswitch", "serve")
    # systemd splits $NAME at blanks, and leaves an empty one out.
    words = [part for word in words for part in (chosen[word[1:]].split() if word.startswith("$") else [word])]
    flags = serve_parser().parse_args(words)
    assert (flags.model_tag, flags.max_model_len, flags.host) == ("Qwen/Qwen3-8B", 131072, "127.0.0.1")
    assert int(found["TimeoutStopSec"]) > flags.shutdown_timeout
    assert variables.read(chosen) == {"ladder": "auto"}
    # A refused start ends with exit code 2.
    assert found["RestartPreventExitStatus"] == "2"


@pytest.mark.full
def test_systemd_takes_it(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    assert tool is not None, "systemd-analyze is missing; it comes with systemd"
    program = tmp_path / "ropeswitch"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    text = (FOLDER / "ropeswitch.service").read_text(encoding="utf-8")
    copy = tmp_path / "ropeswitch.service"
    copy.write_text(text.replace("/opt/ropeswitch/bin/ropeswitch", str(program)), encoding="utf-8")
    done = subprocess.run([tool, "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([tool, "security", "--offline=true", str(copy)], capture_output=True, text=True, check=True)
    level = re.search(r"Overall exposure level for ropeswitch.service: ([\d.]+)", done.stdout)
    assert level is not None and float(level[1]) <= MOST_EXPOSED
