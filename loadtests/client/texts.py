"""Texts that prompts are built from: sentences that hide a pass key. Small YAML files, some of which are shipped."""

import re
from typing import Annotated

from pydantic import Field, model_validator

from ropeswitch.loadtests.client.lengths import Strict
from ropeswitch.loadtests.client.workload import find, read_yaml, validated

Words = Annotated[str, Field(min_length=1, max_length=2000)]


class Text(Strict):
    """A text file.

    Attributes:
        about: One-line description.
        opening: Start of each prompt.
        filler: Sentences, drawn at random.
        key: Sentence with the pass key, ``{key}``.
        question: Question for the key, at the prompt's end.
        next: Start of a conversation's later messages.
        reply: Stand-in for the answers to earlier messages.
        digits: Digits of a pass key.
        answer: Tokens needed for an answer with the key; requests with a lower limit are not judged.
    """

    about: Words
    opening: Words
    filler: Annotated[tuple[Words, ...], Field(min_length=1, max_length=64)]
    key: Words
    question: Words
    next: Words
    reply: Words
    digits: Annotated[int, Field(ge=4, le=12)]
    answer: Annotated[int, Field(ge=1, le=1000)]

    @model_validator(mode="after")
    def _keys(self) -> "Text":
        if "{key}" not in self.key:
            raise ValueError("key: must contain {key}, where the pass key goes")
        if any(re.search(rf"[0-9]{{{self.digits}}}", sentence) for sentence in self.filler):
            raise ValueError(f"filler: must not contain numbers of {self.digits} digits, which look like a pass key")
        return self

    def has_key(self, answer: str, key: str, to_its_end: bool = True) -> bool:
        """Return whether an answer has the key and no other number with as many digits.

        Args:
            answer: Text of the answer.
            key: Digits of the pass key.
            to_its_end: False if the answer continues past its end (``ignore_eos``); then only its first number counts.
        """
        found = re.findall(rf"(?<![0-9])[0-9]{{{self.digits}}}(?![0-9])", answer)
        return set(found if to_its_end else found[:1]) == {key}


def load(name: str) -> Text:
    """Load a shipped text by its name, or a text file.

    Raises:
        UsageError: if there is neither, or it is not a text; the message names the key.
    """
    path = find("text", name)
    return validated(Text, "text", read_yaml(path), str(path))
