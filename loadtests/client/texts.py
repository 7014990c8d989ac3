"""What prompts are made of: sentences in which a pass key is hidden. Small YAML files, some of which are shipped."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.lengths import Strict
from ropeswitch.loadtests.client.workload import problems_of, read_yaml

Words = Annotated[str, Field(min_length=1, max_length=2000)]


class Text(Strict):
    """A text file.

    Attributes:
        about: One-line description.
        opening: Start of each prompt.
        filler: Sentences, drawn at random.
        key: Sentence with the pass key, ``{key}``.
        question: Question for the key, at the end.
        next: Start of a conversation's later messages.
        reply: Stands for the answers to earlier messages.
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
            raise ValueError("key: must hold {key}, where the pass key goes")
        if any(re.search(rf"[0-9]{{{self.digits}}}", sentence) for sentence in self.filler):
            raise ValueError(f"filler: must hold no number of {self.digits} digits, which a pass key has")
        return self

    def has_key(self, answer: str, key: str, to_its_end: bool = True) -> bool:
        """Whether an answer has the key, and no other number of as many digits.

        Args:
            answer: The text.
            key: The digits.
            to_its_end: False where the answer goes on when the model is done: only its first number counts then.
        """
        found = re.findall(rf"(?<![0-9])[0-9]{{{self.digits}}}(?![0-9])", answer)
        return set(found if to_its_end else found[:1]) == {key}


def shipped() -> dict[str, Path]:
    """The texts that come with ropeswitch, by name."""
    folder = Path(str(files("ropeswitch.loadtests"))) / "texts"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load(name: str) -> Text:
    """The text of that name that is shipped, or of that file.

    Raises:
        UsageError: where there is none, or it is not a text; the message tells the key.
    """
    path = shipped().get(name) or Path(name)
    if not path.is_file():
        raise UsageError(f"text {name!r} is neither a file nor one of {', '.join(shipped())}")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a text is a mapping with the keys {', '.join(Text.model_fields)}")
    try:
        return Text.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: {problems_of(error)}") from error
