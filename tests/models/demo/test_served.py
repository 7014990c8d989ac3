"""The demo as a reader runs it: `make demo`, then the requests of docs/start.md."""

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.models.demo.__main__ import NAME
from tests.docs.pages import ROOT, blocks, commands
from tests.docs.shell import Served

START = ROOT / "docs" / "start.md"


@pytest.mark.full
def test_it_answers_the_question_of_the_page_and_finds_the_sentence_in_12000_tokens(tmp_path: Path) -> None:
    """`make demo` with the interpreter of the tests; what a reader or an earlier run fetched is not fetched again."""
    bodies = [json.loads(words[words.index("-d") + 1]) for words in commands(START, "curl")]
    [request] = [body for body in bodies if body["model"] == NAME]
    code = blocks(START, "python")[1]
    assert f'model="{NAME}"' in code
    served = Served(HOME=str(Path.home()))
    try:
        demo = served.need(f"make -C {ROOT} -o .venv/.setup-done BIN={Path(sys.executable).parent} demo", tmp_path)
        answer = demo.post("/v1/chat/completions", request)
        [choice] = answer.json["choices"]
        assert "Paris" in choice["message"]["content"] and choice["finish_reason"] == "stop"
        assert answer.json["model"] == NAME and answer.sets == "original"
        output = StringIO()
        variables: dict[str, Any] = {"__name__": "start"}
        with redirect_stdout(output):
            exec(compile(code.replace("http://127.0.0.1:8000", demo.url), "start.md", "exec"), variables)
    finally:
        served.stop()
    used, reply = output.getvalue().split("\n", 1)
    assert used == "16k" and "lives in Lisbon" in reply
    assert 11_500 <= variables["response"].parse().usage.prompt_tokens <= 12_500
