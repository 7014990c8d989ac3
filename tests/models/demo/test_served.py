"""The demo as a reader runs it: `make demo`, then the requests of docs/start.md."""

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from ropeswitch.models.demo.__main__ import NAME
from tests.docs.pages import ROOT, blocks, commands
from tests.docs.shell import Served
from tests.server.running import Server

pytestmark = pytest.mark.full
START = ROOT / "docs" / "start.md"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`make demo` with the interpreter of the tests; what a reader or an earlier run fetched is not fetched again."""
    served = Served(HOME=str(Path.home()))
    command = f"make -C {ROOT} -o .venv/.setup-done BIN={Path(sys.executable).parent} demo"
    try:
        yield served.need(command, tmp_path_factory.mktemp("demo"))
    finally:
        served.stop()


def test_it_answers_the_question_of_the_page(demo: Server) -> None:
    [request] = [
        body for words in commands(START, "curl") if (body := json.loads(words[words.index("-d") + 1]))["model"] == NAME
    ]
    answer = demo.post("/v1/chat/completions", request)
    [choice] = answer.json["choices"]
    assert "Paris" in choice["message"]["content"] and choice["finish_reason"] == "stop"
    assert answer.json["model"] == NAME and answer.sets == "original"


def test_it_finds_the_sentence_of_the_page_in_12000_tokens(demo: Server) -> None:
    code = blocks(START, "python")[1]
    assert f'model="{NAME}"' in code
    output, variables = StringIO(), {"__name__": "start"}
    with redirect_stdout(output):
        exec(compile(code.replace("http://127.0.0.1:8000", demo.url), "start.md", "exec"), variables)
    used, reply = output.getvalue().split("\n", 1)
    assert used == "16k"
    assert "lives in Lisbon" in reply
    prompt = variables["response"].parse().usage.prompt_tokens
    assert 11_500 <= prompt <= 12_500
