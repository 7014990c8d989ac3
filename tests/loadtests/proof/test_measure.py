"""What a server is asked for, and that an interrupted run goes on with the first document that is missing."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ropeswitch.factors.evaluate.corpus import Corpus, Document
from ropeswitch.factors.evaluate.target import Window
from ropeswitch.loadtests.proof import measure, store
from ropeswitch.loadtests.proof.arms import ARMS, BFLOAT16, FLOAT32, LONGEST, NATIVE, WINDOW, Arm, dtypes
from ropeswitch.loadtests.proof.measure import Length
from ropeswitch.loadtests.proof.store import CHAT, PASSKEY, PERPLEXITY, Item, Measurement
from ropeswitch.models import BUNDLED_MODEL

WORDS = "the king and queen of a far land went to the sea and came back again with gold for all who had lost it. "
TEXTS = Corpus("made up", tuple(Document(f"d{number}", WORDS * (20 + number)) for number in range(4)))
LENGTH = Length(200, documents=3, keys=2)


class Target:
    """A server that finds every key and gives each token a loss of 2 nats; after ``most`` answers it is interrupted."""

    sets = ("served",)
    opening: tuple[int, ...] = ()

    def __init__(self, most: int = 1000) -> None:
        self.windows: list[Window] = []
        self.prompts: list[str] = []
        self._tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
        self._most = most

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def losses(self, windows: Sequence[Window], set_name: str) -> Iterator[list[float]]:
        self._answer()
        self.windows += windows
        return iter([[2.0] * (len(window.ids) - window.first) for window in windows])

    def replies(self, prompts: Sequence[str], set_name: str, new_tokens: int) -> Iterator[str]:
        self._answer()
        self.prompts += prompts
        return iter([" ".join(re.findall(r"key is (\d+)\. Remember", prompt)) for prompt in prompts])

    def _answer(self) -> None:
        if self._most == 0:
            raise KeyboardInterrupt
        self._most -= 1


Measure = Callable[..., dict[Item, Measurement]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measure:
    def call(target: Target | None, task: str, arm: Arm = ARMS[0]) -> dict[Item, Measurement]:
        @contextmanager
        def serving(arm: Arm, model: Path, *, chat: bool) -> Iterator[Any]:
            assert target is not None, "started though nothing is missing"
            yield target

        monkeypatch.setattr(measure, "serving", serving)
        measure.measure(arm, BUNDLED_MODEL, TEXTS, (task,), [LENGTH], tmp_path)
        return store.read(tmp_path, arm.name)

    return call


def test_each_document_gives_one_window_of_which_all_but_the_first_token_count(measured: Measure) -> None:
    target = Target()
    found = measured(target, PERPLEXITY)
    assert len(found) == 3 and {(each.tokens, each.nll) for each in found.values()} == {(199, 398.0)}
    assert [(len(window.ids), window.first) for window in target.windows] == [(200, 1)] * 3


def test_pass_keys_leave_room_for_the_reply(measured: Measure) -> None:
    target = Target()
    found = measured(target, PASSKEY, arm=Arm(NATIVE, BFLOAT16))
    assert [each.found for each in found.values()] == [True, True]
    assert [len(target.encode(prompt)) for prompt in target.prompts] == [190, 190]
    assert len(set(target.prompts)) == 2


def test_an_interrupted_run_goes_on_and_a_finished_one_starts_no_server(measured: Measure, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(Target(most=2), PERPLEXITY)
    assert len(store.read(tmp_path, ARMS[0].name)) == 2
    target = Target()
    assert len(measured(target, PERPLEXITY)) == 3 and len(target.windows) == 1
    measured(None, PERPLEXITY)


def test_chats_are_kept_as_text(measured: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "chats", lambda texts: ["What? key is 12. Remember", "Who?"])
    assert [each.reply for each in measured(Target(), CHAT).values()] == ["12", ""]


def test_what_must_be_equal_is_measured_in_float32_and_by_no_other_server(measured: Measure) -> None:
    assert dtypes(PERPLEXITY, WINDOW) == (FLOAT32,) and dtypes(PERPLEXITY, LONGEST) == (BFLOAT16,)
    assert dtypes(PASSKEY, 512) == (BFLOAT16,) and dtypes(CHAT, 0) == (FLOAT32, BFLOAT16)
    assert measured(None, PERPLEXITY, arm=Arm(NATIVE, BFLOAT16)) == measured(None, PASSKEY) == {}
