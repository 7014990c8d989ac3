"""The process that tokenizes: the tokenizer's own IDs, its errors, and what becomes of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from ropeswitch.server.ingest.text_process import TextProcess
from ropeswitch.server.ingest.token_ids import TokenIds
from tests.passkey_tiny import FOLDER


@pytest.fixture(scope="module")
def texts() -> Iterator[TextProcess]:
    process = TextProcess(AutoTokenizer.from_pretrained(FOLDER))
    yield process
    process.stop()


def test_the_tokenizer_s_own_ids(texts: TextProcess) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = "The pass key is 71432. Remember it. " * 5000
    for options in ({"add_special_tokens": True}, {"truncation": True, "max_length": 100}):
        expected = tokenizer(text, **options)["input_ids"]
        ids = texts.token_ids(text, options)
        assert type(ids) is TokenIds and ids == expected
        assert (ids.smallest, ids.largest) == (min(expected), max(expected))


def test_the_tokenizer_s_own_errors(texts: TextProcess) -> None:
    with pytest.raises(TypeError):
        texts.token_ids("text", {"max_length": "long", "truncation": True})
    assert texts.token_ids("text", {})


def test_a_process_that_ends_is_replaced(texts: TextProcess) -> None:
    texts.token_ids("text", {})
    assert texts._process is not None and texts._process.pid is not None
    os.kill(texts._process.pid, signal.SIGKILL)
    texts._process.join()
    with pytest.raises(RuntimeError, match="ended"):
        texts.token_ids("text", {})
    assert texts.token_ids("text", {})


@pytest.mark.full
def test_it_ends_with_the_server(tmp_path: Path) -> None:
    code = f"""
import os, signal
from transformers import AutoTokenizer
from ropeswitch.server.ingest.text_process import TextProcess

if __name__ == "__main__":
    texts = TextProcess(AutoTokenizer.from_pretrained({str(FOLDER)!r}))
    texts.token_ids("text", {{}})
    print(texts._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    script = tmp_path / "server.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    process = Path("/proc", done.stdout.strip())
    assert done.returncode == -signal.SIGKILL and done.stdout.strip(), done.stderr
    deadline = time.monotonic() + 30
    while process.exists() and "zombie" not in (process / "status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
