"""The command: what it writes, that it goes on after an interruption, and that wrong input ends with one line."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ropeswitch.factors.evaluate.local_target import LocalTarget
from ropeswitch.factors.evaluate.target import Window
from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.factors.file import LadderFile, save
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.server.cli import main
from tests.factors.conftest import MODEL
from tests.passkey_tiny.passkey import REPLY_TOKENS, found, make_prompt

SMALL = ["--lengths", "130,270", "--documents", "2", "--windows", "1", "--tries", "1", "--sets", "switched,long"]


@pytest.fixture
def opened(model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> LocalModel:
    """The command finds the model open already."""
    monkeypatch.setattr(LocalModel, "load", classmethod(lambda cls, name, dtype: model))
    return model


def evaluate(*flags: str) -> int:
    return main(["factors", "eval", MODEL, "-o", "out.json", *flags])


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The message of a command that must leave nothing behind."""
    assert evaluate(*flags) == 2
    output = capsys.readouterr().err
    assert "Traceback" not in output and not Path("out.json").exists()
    (line,) = [line for line in output.splitlines() if line.startswith("ropeswitch: error: ")]
    return line.removeprefix("ropeswitch: error: ")


def test_results_and_going_on(
    opened: LocalModel, texts: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--text", str(texts), *SMALL]
    asked: list[str] = []
    losses = LocalTarget.losses

    def counted(self: LocalTarget, windows: Sequence[Window], set_name: str) -> Iterator[list[float]]:
        asked.append(set_name)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return losses(self, windows, set_name)

    monkeypatch.setattr(LocalTarget, "losses", counted)
    assert evaluate(*flags) == 130
    assert "1 of 8 cells" in capsys.readouterr().err and not Path("out.json").exists()
    with open("out.json.cells.jsonl", "a") as stream:
        stream.write('{"of": ["perpl')
    assert evaluate(*flags) == 0
    # Two documents a cell: the second cell was lost at its second one, and is the first to be made again.
    assert asked == ["switched", "switched", "long", "long", "long", "long", *["switched"] * 2, *["long"] * 2]
    content = json.loads(Path("out.json").read_text())
    assert len(content["cells"]) == 8 and len(content["rows"]) == 8
    assert content["sets"]["long"]["max_length"] == 1024 and content["versions"]["torch"]
    own = [row for row in content["rows"] if row["task"] == "perplexity"]
    assert [(row["length"], row["set_name"], row["count"]) for row in own] == [
        (length, name, 2) for length in (130, 270) for name in ("switched", "long")
    ]
    nll = [each["nll"] for each in content["cells"][0]["result"]]
    assert own[0]["value"] == pytest.approx(math.exp(sum(nll) / own[0]["tokens"]))
    output = capsys.readouterr().out
    assert re.search(r"\| perplexity \| switched \| long \|\n\|---\|---\|---\|\n\| 130 \| [\d.]+ ± [\d.]+ \|", output)
    before = len(asked)
    assert evaluate(*flags) == 2 and "exists; remove it first" in capsys.readouterr().err
    alone = [each for each in flags if each not in ("--tries", "1")]
    alone.insert(alone.index("--windows") + 1, "1")
    assert evaluate(*alone, "--force", "--seeds", "2", "--tasks", "perplexity") == 0
    assert len(asked) == before + 8, "the cells of the first seed are kept"
    assert json.loads(Path("out.json").read_text())["rows"][0]["count"] == 4
    Path("out.json").unlink()
    # What was measured with other settings or another set of that name is measured again.
    before = len(asked)
    assert evaluate(*flags[:-2], "--sets", "long", "--windows", "3") == 0 and len(asked) == before + 4
    save("other.json", LadderFile(FactorLadder((opened.plain_set(1024, "long"),))))
    Path("out.json").unlink()
    assert evaluate(*flags[:-2], "--sets", "long", "--factors", "other.json") == 0 and len(asked) == before + 8


def test_replies_cross_as_hugging_faces_do(target: LocalTarget) -> None:
    """The prompt is below the limit of 256 tokens and its reply above: transformers would choose each token, too.

    Its forward pass over the first 256 tokens has the short factors, that over all of them the long ones.
    """
    prompt, key = make_prompt(target.model.tokenizer, 240, 5, chat=False)
    assert isinstance(prompt, str)
    replies = {name: next(target.replies([prompt], name, REPLY_TOKENS)) for name in target.sets}
    assert found(replies["switched"], key)
    assert not found(replies["short"], key) and not found(replies["long"], key)
    reply = [*target.plain_ids(replies["switched"]), target.model.tokenizer.eos_token_id]
    ids = torch.tensor([[*target.encode(prompt), *reply]])
    theirs = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    with torch.no_grad():
        below, above = (theirs(part).logits[0].argmax(-1).tolist() for part in (ids[:, :256], ids))
    assert reply == [*below[239:], *above[256:-1]]


def test_factors_of_a_file(opened: LocalModel, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = LocalTarget("plain", opened, None)
    assert plain.sets == ("plain",) and plain.describe_set("plain")["factors"] == [1.0] * 16
    flags = ["--lengths", "200", "--tries", "1", "--factors", "some.json"]
    assert "'some.json': does not exist" in refused(capsys, *flags)
    for name, pairs, theta, message in (
        ("switched", 16, None, "set 'switched': the name is reserved"),
        ("yarn", 8, None, "set 'yarn': 8 factors; the model has 16 rotary pairs"),
        ("yarn", 16, 500.0, "made for rope_theta 500, but the model has 10000"),
        ("yarn", 16, 10000.0, ""),
    ):
        made = FactorLadder((FactorSet(name, 1024, (2.0,) * pairs),))
        save("some.json", LadderFile(made, theta), overwrite=True)
        if message:
            assert message in refused(capsys, *flags)
    assert evaluate(*flags) == 0
    assert json.loads(Path("out.json").read_text())["sets"]["yarn"]["factors"] == [2.0] * 16
