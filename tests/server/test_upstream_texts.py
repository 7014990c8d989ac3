"""The patterns that the server matches against vLLM's messages fit messages in the installed vLLM's source."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

import pytest

from ropeswitch.model_patches.guard import registry
from ropeswitch.model_patches.guard.fingerprints import Reading, RegistryError, resolve
from ropeswitch.server.cli import main
from ropeswitch.server.front import refusal
from ropeswitch.server.patches import UPSTREAM_TEXTS
from ropeswitch.server.start import refusals


def messages(file: str) -> Iterator[str]:
    """The strings in the functions that a file of ours reads, with a 7 for every value in them but names."""
    for reading in (each for each in UPSTREAM_TEXTS if each.file == file):
        source = textwrap.dedent(inspect.getsource(resolve(reading.symbol)[2]))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.JoinedStr):
                yield "".join(map(rendered, node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def rendered(part: ast.expr) -> str:
    """A part of an f-string as it may read in a message."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    if "_param" in (name := ast.unparse(part)):
        return "max_model_len"
    return "decoder" if "prompt_type" in name else "7"


@pytest.mark.parametrize("pattern", refusal._TOO_LONG.pattern.split("|"))
def test_every_alternative_fits_a_message(pattern: str) -> None:
    assert any(re.match(pattern, message) for message in messages("server/front/refusal.py"))


def test_what_refusals_match_is_read() -> None:
    """Every function looked for in a traceback and every logger has a text."""
    readings = [each for each in UPSTREAM_TEXTS if each.file == "server/start/refusals.py"]
    functions = {each.symbol.rsplit(".", 1)[1] for each in readings}
    assert functions >= {*refusals.INPUT_CHECKS, refusals.SERVER_CHECK}
    modules = {each.symbol for each in readings}
    assert all(any(path.startswith(f"{name}.") for path in modules) for name in refusals.LOGGERS)


def test_every_text_is_in_the_installed_source() -> None:
    registry.require((), UPSTREAM_TEXTS)


def test_a_text_that_is_gone_stops_the_start() -> None:
    gone = Reading("server/start/refusals.py", "vllm.exceptions.QueueOverflowError", ("is currently idle",))
    with pytest.raises(RegistryError, match=r"QueueOverflowError: its source no longer holds 'is currently idle'"):
        registry.require((), (gone,))


def test_check_names_a_text_that_is_gone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The function has another name, as in another release of vLLM."""

    def make_socket() -> None: ...

    monkeypatch.setattr("vllm.entrypoints.launchers.launcher.setup_server", make_socket)
    assert main(["patches", "check"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "vllm.entrypoints.launchers.launcher.setup_server: its source no longer holds 'def setup_server(', "
        "which server/start/refusals.py matches"
    )
