"""Prompts of exact lengths, for tokenizers of the kinds that models have, made by the ``tokenizers`` library."""

import json
import re
import time
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Fast

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.tokenizers import LocalTokenizer, Messages
from ropeswitch.loadtests.client import pieces as texts
from ropeswitch.loadtests.client import prompts
from ropeswitch.loadtests.client.loadtest import make_keys
from ropeswitch.loadtests.client.pieces import cut
from ropeswitch.loadtests.client.plan import Planned
from ropeswitch.loadtests.client.prompts import Composer, Conversation, Joints
from ropeswitch.loadtests.client.workload import shipped
from tests.passkey_tiny import FOLDER

ROOT = Path(__file__).resolve().parents[3]
CORPUS = [
    sentence for name in shipped("text") for text in [texts.load(name)] for sentence in (*text.filler, text.opening)
]
CORPUS += ["The quick brown fox jumps over the lazy dog.", "It was the best of times, it was the worst of times."] * 3


SPECIAL = ["<unk>", "<s>", "</s>", "<u>"]


class Made:
    """A tokenizer of the library, with a chat template of the plainest kind."""

    def __init__(self, fast: Fast) -> None:
        self.fast = fast

    def text(self, text: str) -> list[int]:
        found: list[int] = self.fast.encode(text).ids
        return found

    def chat(self, messages: Messages) -> list[int]:
        ids = [self.fast.token_to_id("<s>")]
        for message in messages:
            ids += [self.fast.token_to_id("<u>"), *self.fast.encode(message["content"], add_special_tokens=False).ids]
            ids.append(self.fast.token_to_id("</s>"))
        return [*ids, self.fast.token_to_id("<u>")]


def gpt(digits: str = r"\p{N}{1,3}") -> Fast:
    """Byte-level BPE, split as Llama 3's and GPT-4's are."""
    fast = Fast(models.BPE())
    pattern = rf"(?i:'s|'t|'re)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+"
    split, levels = pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([split, levels])
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL[1:], initial_alphabet=alphabet, show_progress=False
    )
    fast.train_from_iterator(CORPUS, trainer)
    return fast


def llama() -> Fast:
    """SentencePiece's BPE, as Llama 2, Mistral and Phi-3 have it: no split before the merges, and a space put first."""
    fast = Fast(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = Fast(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=[*SPECIAL, *bytes_], show_progress=False)
    trained.train_from_iterator([*CORPUS, "0 1 2 3 4 5 6 7 8 9 ! \n"], trainer)
    content = json.loads(trained.to_str())["model"]
    whole = json.loads(fast.to_str())
    whole["model"] |= {"vocab": content["vocab"], "merges": content["merges"]}
    whole["added_tokens"] = json.loads(trained.to_str())["added_tokens"][:4]
    fast = Fast.from_str(json.dumps(whole))
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", fast.token_to_id("<s>"))]
    )
    return fast


def unigram() -> Fast:
    """SentencePiece's unigram model, as T5 and others have it."""
    fast = Fast(models.Unigram())
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    fast.train_from_iterator(CORPUS * 5 + list("0123456789"), trainer)
    return fast


def wordpiece() -> Fast:
    """BERT's: spaces are gone, and marks are words."""
    fast = Fast(models.WordPiece(unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    fast.train_from_iterator(CORPUS + list("0123456789"), trainer)
    return fast


TOKENIZERS: dict[str, Any] = {
    "gpt": lambda: Made(gpt()),
    "single-digits": lambda: Made(gpt(r"\p{N}")),
    "llama": lambda: Made(llama()),
    "unigram": lambda: Made(unigram()),
    "wordpiece": lambda: Made(wordpiece()),
    "bundled": lambda: LocalTokenizer(str(FOLDER)),
}


@cache
def tokenizer(name: str) -> Any:
    return TOKENIZERS[name]()


@cache
def composer(name: str, text: str, chat: bool) -> tuple[Composer, tuple[str, ...]]:
    keys = make_keys(texts.load(text), 0)
    return Composer(cut(texts.load(text), tokenizer(name), chat, keys), chat), keys


def rendered(name: str, content: Any) -> list[int]:
    """The tokens that a server makes of a request's field."""
    field = json.loads("{" + content.decode() + "}")
    if "messages" in field:
        found: list[int] = tokenizer(name).chat(field["messages"])
    else:
        found = field["prompt"] if isinstance(field["prompt"], list) else tokenizer(name).text(field["prompt"])
    return found


@pytest.mark.parametrize("text", ["paper", "village"])
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=12)
@given(extra=st.integers(0, 3000), seed=st.integers(0, 1000), chat=st.booleans())
def test_prompts_have_exactly_the_tokens_that_were_asked_for(
    name: str, text: str, extra: int, seed: int, chat: bool
) -> None:
    made, keys = composer(name, text, chat)
    tokens = made.pieces.least + extra
    key = keys[seed % len(keys)]
    parts = made.single(tokens, key, np.random.default_rng(seed))
    ids = rendered(name, made.body(parts, "text"))
    assert ids == [token for part in parts for token in part.ids]
    assert len(ids) == tokens
    found = re.findall(rf"(?<!\d){key}(?!\d)", made.text(parts))
    assert len(found) == texts.load(text).key.count("{key}")
    if not chat:
        assert rendered(name, made.body(parts, "ids")) == ids


@pytest.mark.parametrize("name", ["bundled", "gpt"])
def test_conversations_have_exactly_the_tokens_that_were_asked_for(name: str) -> None:
    made, keys = composer(name, "village", True)
    joints = Joints(texts.load("village"), tokenizer(name), made)
    random = np.random.default_rng(3)
    talk = Conversation(made, joints, made.single(100, keys[3], random), keys[3], random)
    for tokens in (200, 201 + joints.tokens(keys[3]), 900):
        talk.grow(tokens)
        assert len(rendered(name, talk.body())) == tokens
    with pytest.raises(UsageError, match=r"turns.grow: 1 tokens cannot hold a reply and a question, which need"):
        talk.grow(901)


def test_a_tokenizer_that_joins_sentences_is_refused() -> None:
    class Joining:
        def text(self, text: str) -> list[int]:
            # One sentence and the next one's first word share a token.
            return [hash(part) for part in re.findall(r" house\. A| ?\w+|[^\w\s]| ", text)]

        chat = None

    with pytest.raises(UsageError, match=r"the tokens change next to ' (A|The) "):
        cut(texts.load("village"), Joining(), False, ("123456",))  # type: ignore[arg-type]


def test_a_million_tokens_take_less_than_a_second_to_make() -> None:
    """The one figure of time that a test asserts: it is a promise, and ten times what it takes."""
    made, keys = composer("bundled", "paper", False)
    form: Literal["text", "ids"]
    for form in ("text", "ids"):
        start = time.process_time()
        body = made.body(made.single(1_000_000, keys[0], np.random.default_rng(0)), form)
        assert time.process_time() - start < 1.0
        assert len(body) > 1_000_000


def planned(count: int, tokens: int) -> list[Planned]:
    return [Planned(index, index, "chat", tokens + index, 44, index % 64) for index in range(count)]


def test_a_pack_holds_every_prompt_and_no_file_is_left(tmp_path: Path) -> None:
    made, keys = composer("bundled", "village", True)
    joints = Joints(texts.load("village"), tokenizer("bundled"), made)
    first = prompts.build(tmp_path, planned(20, 100), made, joints, 5)
    assert len(first.places) == 20 and list(tmp_path.iterdir()) == []
    for index in range(20):
        assert len(rendered("bundled", bytes(first.prompt(index)))) == 100 + index
        assert keys[index] in bytes(first.prompt(index)).decode()


def test_a_full_disk_is_told_before_prompts_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = composer("bundled", "village", True)
    joints = Joints(texts.load("village"), tokenizer("bundled"), made)
    monkeypatch.setattr(prompts.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 20}))
    with pytest.raises(UsageError, match="the prompts take up to 15 MiB, but only 1 MiB are free"):
        prompts.build(tmp_path, planned(2, 1_000_000), made, joints, 5)


def test_text_files_are_checked(tmp_path: Path) -> None:
    content = (ROOT / "loadtests" / "texts" / "paper.yaml").read_text()
    path = tmp_path / "own.yaml"
    for change, expected in (
        (("{key}. Remember it. {key} is", "12345. It is"), "key: must contain {key}"),
        (("The grass is green.", "The grass is 12345."), "filler: must not contain numbers of 5 digits"),
        (("digits: 5", "digits: 50"), "digits: Input should be less than or equal to 12"),
        (("about:", "abot:"), "abot: unknown key"),
    ):
        path.write_text(content.replace(*change))
        with pytest.raises(UsageError, match=re.escape(expected)):
            texts.load(str(path))


def test_answers_are_judged_by_their_numbers() -> None:
    text = texts.load("village")
    assert text.has_key("The pass key is 123456. It is 123456.", "123456")
    assert text.has_key("123456 of 12 and 1234567.", "123456")
    assert not text.has_key("The pass key is 123456. It is 123457.", "123456")
    assert not text.has_key("The pass key is 1234567.", "123456")
    assert not text.has_key("", "123456")
    # With ignore_eos the answer goes on after its end.
    assert text.has_key("It is 123456. And 654321.", "123456", to_its_end=False)
    assert not text.has_key("It is 654321. And 123456.", "123456", to_its_end=False)
