"""``ropeswitch verify`` calls a right server exact, and finds what is broken in a real one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ropeswitch.server import cli
from tests.passkey_tiny import FOLDER, SERVED
from tests.server.running import ENGINE, Server, running


@dataclass(frozen=True)
class Breakable:
    """A server, and the file that says how it is broken."""

    server: Server
    how: Path


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Breakable]:
    folder = tmp_path_factory.mktemp("broken")
    how = folder / "how"
    how.write_text("")
    path = os.pathsep.join([str(Path(__file__).with_name("broken")), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"PYTHONPATH": path, "ROPESWITCH_TEST_BREAK": str(how)}
    with running(folder, *SERVED, *ENGINE, variables=variables) as server:
        yield Breakable(server, how)


def verify(server: Server, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str]]:
    """The exit code, and the lines of standard output."""
    code = cli.main(["verify", server.url, *flags])
    printed = capsys.readouterr()
    return code, (printed.out or printed.err).splitlines()


@pytest.mark.full
def test_a_right_server_is_exact(breakable: Breakable, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    breakable.how.write_text("")
    code, lines = verify(
        breakable.server, capsys, "--reference", str(FOLDER), "--ladder", "auto", "-o", str(tmp_path / "out.json")
    )
    assert code == 0, "\n".join(lines)
    assert len(lines) == 1 + 2 + 5 + 5 + 1 + 1 + 2, "\n".join(lines)
    assert all(line.endswith("exact") for line in lines[1:])


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("rows", [("256", "in a batch", "one past")]),
        ("keys", [("256", "after another set", "one past")]),
        ("decision", [("256", "in a batch", "one past"), ("256", "in a batch", "crossing")]),
        ("crossing", [("256", "in a batch", "crossing"), ("256", "in a batch", "at"), ("256", "cached", "crossing")]),
    ],
)
def test_a_broken_server_is_found(
    breakable: Breakable, capsys: pytest.CaptureFixture[str], how: str, found: list[tuple[str, ...]]
) -> None:
    breakable.how.write_text(how)
    code, lines = verify(breakable.server, capsys)
    assert code == 1
    differing = [line for line in lines if line.endswith("DIFFERS")]
    for words in found:
        assert any(all(word in line for word in words) for line in differing), "\n".join(lines)
