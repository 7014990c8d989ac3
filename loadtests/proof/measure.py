"""Measures one server: losses of documents, pass keys and greedy answers to short chats, all over HTTP."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.factors.evaluate.endpoint_target import EndpointTarget
from ropeswitch.factors.evaluate.passkey import REPLY_TOKENS, ask, is_found
from ropeswitch.factors.evaluate.perplexity import choose, windows_of
from ropeswitch.factors.evaluate.tokenizers import LocalTokenizer
from ropeswitch.loadtests.proof import store
from ropeswitch.loadtests.proof.arms import LONGEST, Arm, dtypes, serving
from ropeswitch.loadtests.proof.store import CHAT, PASSKEY, PERPLEXITY, Item, Measurement
from ropeswitch.loadtests.proof.texts import sentences

CHATS, CHAT_TOKENS = 200, 64


@dataclass(frozen=True)
class Length:
    """A prompt length in tokens, with the number of documents and pass keys to measure at it."""

    tokens: int
    documents: int
    keys: int


LENGTHS = (
    Length(512, 30, 20),
    Length(2048, 30, 20),
    Length(8192, 30, 10),
    Length(16384, 8, 5),
    # With the token that the server generates after each prompt, this is the longest sequence.
    Length(LONGEST - 1, 5, 3),
)
Work = tuple[Item, Callable[[EndpointTarget], Measurement]]


def measure(arm: Arm, model: Path, texts: Corpus, tasks: Sequence[str], lengths: Sequence[Length], out: Path) -> None:
    """Measure the items that ``out`` does not have for a server yet; start the server only if some are missing."""
    done = store.read(out, arm.name)
    for chat in (False, True):
        wanted = [task for task in tasks if (task == CHAT) == chat]
        items = [item for task in wanted for item in _items(task, texts, model, lengths)]
        items = [work for work in items if arm.dtype in dtypes(work[0].task, work[0].length)]
        missing = [work for work in items if work[0] not in done]
        if not missing:
            continue
        with serving(arm, model, chat=chat) as target, tqdm(missing, unit="item", desc=arm.name) as bar:
            for item, work in bar:
                bar.set_postfix_str(f"{item.task} {item.length} {item.name}")
                store.append(out, arm.name, work(target))


def _items(task: str, texts: Corpus, model: Path, lengths: Sequence[Length]) -> Iterator[Work]:
    if task == CHAT:
        for number, prompt in enumerate(chats(texts)):
            yield _chat(str(number), prompt)
    for length in lengths if task == PASSKEY else ():
        yield from (_key(length.tokens, str(number)) for number in range(length.keys))
    if task == PERPLEXITY:
        for length in lengths:
            yield from _documents(texts, model, length)


def _documents(texts: Corpus, model: Path, length: Length) -> Iterator[Work]:
    """The documents of one length, always the same ones in the same order."""
    encode = partial(LocalTokenizer(str(model)).text, special=False)
    rng = random.Random(f"proof {length.tokens}")
    for document, ids in choose(texts, encode, 0, length.tokens, rng, length.documents):
        start = rng.randrange(len(ids) - length.tokens + 1)
        yield _perplexity(Item(PERPLEXITY, length.tokens, document.name), ids[start : start + length.tokens])


def _perplexity(item: Item, ids: list[int]) -> Work:
    def work(target: EndpointTarget) -> Measurement:
        [window] = windows_of(ids, target.opening, item.length, item.length, 1)
        [losses] = target.losses([window], target.sets[0])
        return Measurement(item, tokens=len(losses), nll=round(sum(losses), 6))

    return item, work


def _key(length: int, name: str) -> Work:
    item = Item(PASSKEY, length, name)

    def work(target: EndpointTarget) -> Measurement:
        # All tokens of the reply but the last are processed too, and must stay within the same set.
        rng = random.Random(f"proof pass key {length} {name}")
        question = ask(target.encode, length - REPLY_TOKENS, rng)
        [reply] = target.replies([question.text], target.sets[0], REPLY_TOKENS)
        return Measurement(item, reply=reply, found=is_found(reply, question.key))

    return item, work


def chats(texts: Corpus) -> list[str]:
    """Short chat prompts, each about one sentence of the essays."""
    return [f'What does this sentence mean? "{each}"' for each in sentences(texts, CHATS)]


def _chat(name: str, prompt: str) -> Work:
    item = Item(CHAT, 0, name)

    def work(target: EndpointTarget) -> Measurement:
        [reply] = target.replies([prompt], target.sets[0], CHAT_TOKENS)
        return Measurement(item, reply=reply)

    return item, work
