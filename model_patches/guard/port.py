"""``ropeswitch patches port``: lists the symbols that another vLLM release changed, grouped by ropeswitch file."""

import difflib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.model_patches.guard.fingerprints import Patch, Reading
from ropeswitch.model_patches.guard.source_tree import Definition, SourceTree

UNCHANGED, CHANGED, GONE = "unchanged", "changed", "gone"


@dataclass(frozen=True)
class Difference:
    """One symbol in two releases.

    Attributes:
        path: Its dotted path.
        state: ``unchanged``, ``changed`` or ``gone``.
        diff: A unified diff of its source; empty unless it changed.
    """

    path: str
    state: str
    diff: str = ""


def installed_folder() -> Path:
    """Return the folder that contains the installed ``vllm``, without importing it.

    Raises:
        FileNotFoundError: when vLLM is not installed.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("no vLLM is installed to compare with")
    return Path(spec.origin).parent.parent


def compare(
    records: Sequence[Patch], readings: Sequence[Reading], old: SourceTree, new: SourceTree
) -> dict[str, list[Difference]]:
    """Return how the symbols that patches rely on differ between two releases, by ropeswitch file.

    A target whose source no patch relies on is included only if it is gone.

    Args:
        records: The patches.
        readings: The upstream texts that ropeswitch files match; a symbol counts as changed only if it lost one of them.
        old: The installed release.
        new: The other release.

    Raises:
        LookupError: for a symbol that is not in the old release's source.
    """
    found: dict[str, dict[str, Difference]] = {}
    for record in records:
        of_file = found.setdefault(record.file, {})
        for path in record.relies_on:
            of_file[path] = _difference(path, old.find(path), new.find(path))
        if record.target not in of_file and not new.find(record.target):
            of_file[record.target] = Difference(record.target, GONE)
    for reading in readings:
        path = reading.symbol
        difference = _difference(path, old.find(path), definitions := new.find(path))
        if difference.state == CHANGED and all(any(t in each.text for each in definitions) for t in reading.texts):
            difference = Difference(path, UNCHANGED)
        found.setdefault(reading.file, {})[path] = difference
    return {file: list(differences.values()) for file, differences in found.items()}


def _difference(path: str, old: list[Definition], new: list[Definition]) -> Difference:
    if not old:
        raise LookupError(f"{path}: not found in the installed vLLM's source")
    # A method that is now inherited counts as gone: the class no longer overrides it.
    if not new or new[0].owner != old[0].owner:
        return Difference(path, GONE)
    if [each.code for each in old] == [each.code for each in new]:
        return Difference(path, UNCHANGED)
    before, after = ("".join(each.text for each in release).splitlines(keepends=True) for release in (old, new))
    return Difference(path, CHANGED, "".join(difflib.unified_diff(before, after, f"installed {path}", f"other {path}")))


def lines(found: dict[str, list[Difference]], *, diff: bool) -> Iterator[str]:
    """Yield the report's lines: one paragraph per ropeswitch file, then the totals.

    Args:
        found: The result of :func:`compare`.
        diff: Whether to add each changed symbol's diff.
    """
    for file, differences in sorted(found.items()):
        yield f"{file}: {_counts(differences)}"
        for each in differences:
            if each.state != UNCHANGED:
                yield f"  {each.state:8} {each.path}"
                if diff and each.diff:
                    yield each.diff.rstrip("\n")
    every = list({each.path: each for differences in found.values() for each in differences}.values())
    touched = sum(any(each.state != UNCHANGED for each in differences) for differences in found.values())
    yield f"{len(every)} symbols: {_counts(every)}; {touched} of {len(found)} files to look at"


def _counts(differences: Sequence[Difference]) -> str:
    states = [each.state for each in differences]
    return ", ".join(f"{states.count(state)} {state}" for state in (UNCHANGED, CHANGED, GONE))
