"""Chats whose answers cross a limit."""

from collections.abc import Callable, Sequence

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.tokenizers import Tokenizer
from ropeswitch.loadtests.verify.plan import ANSWER, CHAT, Case, Ladder, Words, crosses

TRIES = 12


def chats(
    tokenizer: Tokenizer, ladder: Ladder, ends: Sequence[int], words: Words, report: Callable[[str], None]
) -> list[Case]:
    """Return a chat for each limit that sequences cross; reports where there is none, and why."""
    found: list[Case] = []
    for end in filter(lambda end: crosses(ladder, end), ends):
        try:
            text = _message(tokenizer, words, end - ANSWER // 2)
        except UsageError as error:
            report(f"not tried: chats: {error}")
            return found
        if text is None:
            report(f"not tried: a chat around {end:,} tokens, as no message had that length")
        else:
            found.append(Case(end, "crossing", CHAT, (), text=text))
    return found


def _message(tokenizer: Tokenizer, words: Words, wanted: int) -> str | None:
    """Return a message of ``wanted`` tokens, the chat template's included, to a quarter of an answer; None without one."""
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topics.values()).split())
    start = int(words.random.integers(len(text) // 2))
    characters = 2 * wanted
    for _ in range(TRIES):
        message = (text[start:] + text * (characters // len(text) + 1))[:characters]
        tokens = len(tokenizer.chat([{"role": "user", "content": message}]))
        if abs(tokens - wanted) <= ANSWER // 4:
            return message
        characters = max(1, characters * wanted // tokens)
    return None
