"""Wrong input of any ``ropeswitch factors`` command: exit code 2, one line that names it, and no file changes."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from ropeswitch.factors.local_model import LocalModel
from ropeswitch.server.cli import main
from tests.factors.conftest import MODEL
from tests.factors.test_cli import CONFIG

ROWS = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf-8"))
BASE = "--rope-theta 10000 --original-length 4k"
BASELESS = {"hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 4096}
SIZE = f"--rotary-dim 128 {BASE}"
FLAGS = {"MODEL": MODEL, "SIZE": SIZE, "BASE": BASE, "CSV": "--set 8k=8192:short.csv --set 2048k=2097152:short.csv"}


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch, model: LocalModel) -> Path:
    """Files that the rows name; the commands find the model open already."""
    monkeypatch.setattr(LocalModel, "load", classmethod(lambda cls, name, dtype: model))
    (folder / "empty").mkdir()
    (folder / "out.cells.jsonl").mkdir()
    texts = {"short.csv": "0.9\n3\n2\n", "two.csv": "1\n2\n", "config.json": json.dumps(CONFIG)}
    texts |= {"baseless.json": json.dumps(BASELESS), "short.txt": "A word.", "long.txt": "A word. " * 99}
    texts |= dict.fromkeys(("mine.json", "mine.64.checkpoint.jsonl"), "mine")
    texts |= {"bad.jsonl": '{"text": "a"}\n["b"]\n', "half.jsonl": '{"text": "hi \\ud83d there"}\n'}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    assert main(["factors", "rule", "ntk", *SIZE.split(), "--lengths", "8k,32k", "-o", "ntk.json"]) == 0
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("command", "message"), [(f"{first} {rest}", message) for first in ROWS for rest, message in ROWS[first]]
)
def test_wrong_input_is_one_line_and_writes_nothing(
    command: str, message: str, plain: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    capsys.readouterr()
    flags = FLAGS | {"PLAIN": plain}
    words = [part for word in shlex.split(command) for part in shlex.split(flags.get(word, shlex.quote(word)))]
    assert main(words) == 2
    printed = capsys.readouterr()
    *other, last = printed.err.splitlines()
    assert last.startswith("ropeswitch: error: ") and message in last and "Traceback" not in str(other)
    assert printed.out == "" and contents(folder) == before
