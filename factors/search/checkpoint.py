"""Stores what a search has evaluated so far, in a file that is always complete."""

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
# Fields that may differ: iterations draw only from the seed and their number, so a longer search resumes a shorter one.
OPEN = ("iterations",)
# Seconds between two writes of the file: the most work that is lost when a search is killed.
SECONDS = 2.0


class Checkpoint:
    """The perplexities of a search, by candidate.

    The search itself is not stored. It is replayed from its seed with these perplexities, so it ends like an uninterrupted
    one.

    Args:
        path: Path of the file, which is read if it exists.
        task: Everything that perplexities or the course of the search depend on, as plain JSON values. A file with another
            number of iterations still matches.

    Attributes:
        known: Perplexities by candidate, in order of evaluation.

    Raises:
        FactorError: when the file belongs to another search, naming the field that differs, or is not a checkpoint.
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
            # Fail now rather than after the first hour if the folder is not writable.
            self.save()
        self._saved = time.monotonic()

    def add(self, found: Mapping[Candidate, float]) -> None:
        """Add perplexities; write the file if the last write was more than SECONDS ago."""
        self.known.update(found)
        if time.monotonic() - self._saved > SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file.

        Raises:
            FactorError: when it cannot be written; the previous file stays unchanged.
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
                    f"{name}: it was made with {quoted(there)}, but this search has {quoted(here)}; remove the file to "
                    "start over, or use another output"
                )
        try:
            for hundredths, start_tokens, score in content["evaluated"]:
                self.known[Candidate(tuple(map(int, hundredths)), int(start_tokens))] = float(score)
        except (KeyError, TypeError, ValueError) as error:
            raise FactorError(f"evaluated: must be a list of candidates: {error}") from error
