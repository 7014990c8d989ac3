"""What a search has evaluated so far, in a file that is always whole."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.search.space import Candidate
from ropeswitch.factors.strict_json import object_from_json, read_text
from ropeswitch.factors.whole_file import save_text

FORMAT = "ropeswitch-search/1"
# May differ: an iteration draws from the seed and its number alone, so a search of more goes on as one of fewer began.
OPEN = ("iterations",)
# Between two writes of the file: what is lost at worst when a search is killed.
SECONDS = 2.0


class Checkpoint:
    """The perplexities of a search, by candidate.

    The search itself is not stored: it is replayed from its seed with these perplexities, and so ends as an uninterrupted
    one does.

    Args:
        path: The file; one that exists is read.
        task: Everything on which a perplexity or the search's course depends, as plain JSON values; a file with another
            number of iterations is this search's too.

    Attributes:
        known: Perplexities by candidate, in the order they were evaluated.

    Raises:
        FactorError: when the file is that of another search, naming the field that differs, or is no checkpoint.
    """

    def __init__(self, path: str | Path, task: Mapping[str, Any]) -> None:
        self.path, self._task = Path(path), json.loads(json.dumps(task))
        self.known: dict[Candidate, float] = {}
        if self.path.exists():
            try:
                self._read()
            except FactorError as error:
                raise FactorError(f"checkpoint {str(path)!r}: {error}") from error
        else:
            # Now rather than after the first hour, should the folder not be writable.
            self.save()
        self._saved = time.monotonic()

    def add(self, found: Mapping[Candidate, float]) -> None:
        """Keep more perplexities; the file is written when the last time was a while ago."""
        self.known.update(found)
        if time.monotonic() - self._saved > SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file.

        Raises:
            FactorError: when it cannot be written; the file before stays as it was.
        """
        evaluated = [[each.hundredths, each.start_tokens, score] for each, score in self.known.items()]
        content = {"format": FORMAT, "task": self._task, "evaluated": evaluated}
        save_text(self.path, json.dumps(content) + "\n", overwrite=True)
        self._saved = time.monotonic()

    def _read(self) -> None:
        content = object_from_json(read_text(self.path))
        if content.get("format") != FORMAT:
            raise FactorError(f"format: {quoted(content.get('format'))}; this version reads {FORMAT!r}")
        task = content.get("task")
        if not isinstance(task, dict):
            raise FactorError(f"task: {quoted(task)} must be an object")
        for name in sorted({*task, *self._task} - {*OPEN}):
            there, here = task.get(name), self._task.get(name)
            if there != here:
                raise FactorError(
                    f"{name}: it was made with {quoted(there)}, this search has {quoted(here)}; remove the file to begin "
                    "anew, or name another"
                )
        try:
            for hundredths, start_tokens, score in content["evaluated"]:
                self.known[Candidate(tuple(map(int, hundredths)), int(start_tokens))] = float(score)
        except (KeyError, TypeError, ValueError) as error:
            raise FactorError(f"evaluated: is no list of candidates: {error}") from error
