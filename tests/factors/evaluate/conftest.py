"""Targets, and texts that tell a right factor set from a wrong one by far."""

import json
from pathlib import Path

import pytest

from ropeswitch.factors.evaluate.local_target import LocalTarget
from ropeswitch.factors.local_model import LocalModel
from tests.factors.conftest import MODEL
from tests.passkey_tiny.passkey import filler_text, make_prompt, reply


@pytest.fixture
def target(model: LocalModel) -> LocalTarget:
    return LocalTarget(MODEL, model, model.ladder)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two long texts and, in another form, a third."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(2):
        (folder / f"{number}.txt").write_text(filler_text(number, 100))
    (folder / "more.jsonl").write_text(json.dumps({"text": filler_text(2, 100)}) + "\n\n")
    return folder


def answered(folder: Path, model: LocalModel, length: int, count: int) -> int:
    """Write texts of exactly ``length`` tokens, the begin token included, that end with the reply to a pass-key prompt.

    Returns:
        Tokens of the replies.
    """
    reply_tokens = len(model.tokenizer.encode(reply("123456"), add_special_tokens=False))
    for number in range(count):
        prompt, key = make_prompt(model.tokenizer, length - reply_tokens, number, chat=False)
        assert isinstance(prompt, str)
        (folder / f"{number}.txt").write_text(prompt + reply(key))
    return reply_tokens
