"""`ropeswitch patches port`: two small releases are compared by their source alone, by file of ours."""

from pathlib import Path

import pytest

from ropeswitch.model_patches.guard import port
from ropeswitch.model_patches.guard.fingerprints import Patch, Reading
from ropeswitch.model_patches.guard.source_tree import SourceTree

RECORDS = (
    Patch("vllm.core.hashed", "wrapped", "ours/hash.py", ("vllm.core.hashed", "vllm.core.moved")),
    Patch("vllm.sched.Async", "subclassed", "ours/sched.py", ("vllm.sched.Async.step", "vllm.sched.Async.inherited")),
    Patch("vllm.sched.Async.overridden", "wrapped", "ours/sched.py", ("vllm.sched.Async.overridden",)),
    Patch("vllm.sched.TABLE", "replaced", "ours/table.py", ()),
)
READINGS = (Reading("ours/texts.py", "vllm.impl.refuse", ("too long",)),)
SCHED = """
from .base import Base
TABLE = {}

class Async(Base[int]):
    def step(self, budget):
        # plan
        return budget

    def overridden(self):
        return 2
"""
OLD = {
    # A module that cannot be run, as those of another release may not.
    "__init__.py": "raise RuntimeError('run')\n",
    "core.py": '''
raise RuntimeError("run")
import torch
from vllm.impl import *
if torch.cuda:
    def hashed(block, extra=None):
        """Hash a block."""
        text = """
not indented
"""
        return text  # of all
else:
    def hashed(block, extra=None):
        return None
''',
    "impl.py": "def moved(x):\n    return x\n\ndef refuse():\n    later = 1\n    raise ValueError('too long')\n",
    "sched.py": SCHED,
    "base.py": "class Base:\n    def inherited(self):\n        return 1\n    def overridden(self):\n        return 1\n",
}


def tree(folder: Path, changes: dict[str, tuple[str, str]]) -> Path:
    """A release in a folder: OLD with a text replaced by another in some files."""
    (folder / "vllm").mkdir(parents=True)
    for name, text in OLD.items():
        before, after = changes.get(name, ("", ""))
        assert before in text
        (folder / "vllm" / name).write_text(text.replace(before, after) if before else text)
    return folder


def states(tmp_path: Path, changes: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The symbols that are not unchanged, without their ``vllm.``, and what they are."""
    old, new = SourceTree(tree(tmp_path / "old", {})), SourceTree(tree(tmp_path / "new", changes))
    found = port.compare(RECORDS, READINGS, old, new)
    every = [each for differences in found.values() for each in differences]
    assert {"vllm.sched.Async.inherited", "vllm.core.moved"} <= {each.path for each in every}
    return {each.path.removeprefix("vllm."): each.state for each in every if each.state != port.UNCHANGED}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"core.py": ("# of all", "# of it all")}, {}),
        ({"core.py": ("Hash a block.", "Hash one block.")}, {}),
        ({"core.py": ("not indented", "not  indented")}, {"core.hashed": "changed"}),
        ({"core.py": ("return None", "return block")}, {"core.hashed": "changed"}),
        ({"core.py": ("extra=None):\n        return", "extra=()):\n        return")}, {"core.hashed": "changed"}),
        ({"impl.py": ("return x", "return -x")}, {"core.moved": "changed"}),
        ({"impl.py": ("def moved", "def renamed")}, {"core.moved": "gone"}),
        ({"core.py": ("vllm.impl import *", ".impl import moved")}, {}),
        ({"sched.py": ("# plan\n        return budget", "return budget + 1")}, {"sched.Async.step": "changed"}),
        ({"base.py": ("return 1\n    def over", "return 3\n    def over")}, {"sched.Async.inherited": "changed"}),
        ({"sched.py": ("def overridden", "def other")}, {"sched.Async.overridden": "gone"}),
        ({"impl.py": ("later = 1", "later = 2")}, {}),
        ({"impl.py": ("too long", "too large")}, {"impl.refuse": "changed"}),
        ({"impl.py": ("def refuse", "def reject")}, {"impl.refuse": "gone"}),
        ({"sched.py": ("TABLE = {}", "")}, {"sched.TABLE": "gone"}),
        ({"sched.py": ("TABLE = {}", "TABLE = []")}, {}),
    ],
)
def test_states(tmp_path: Path, changes: dict[str, tuple[str, str]], expected: dict[str, str]) -> None:
    assert states(tmp_path, changes) == expected


def test_a_symbol_that_the_installed_release_lacks_is_an_error(tmp_path: Path) -> None:
    records = [Patch("vllm.core.hashed", "wrapped", "ours/hash.py", ("vllm.core.nothing",))]
    release = SourceTree(tree(tmp_path, {}))
    with pytest.raises(LookupError, match=r"vllm\.core\.nothing: not found"):
        port.compare(records, [], release, release)


def test_a_file_that_this_python_cannot_parse_is_named(tmp_path: Path) -> None:
    old = SourceTree(tree(tmp_path / "old", {}))
    new = SourceTree(tree(tmp_path / "new", {"sched.py": ("TABLE = {}", "TABLE = {")}))
    with pytest.raises(LookupError, match=r"sched\.py:\d+: this Python cannot parse it"):
        port.compare(RECORDS, READINGS, old, new)


@pytest.mark.parametrize("diff", [False, True])
def test_the_report(tmp_path: Path, diff: bool) -> None:
    changes = {"sched.py": ("return budget", "return budget + 1"), "impl.py": ("def moved", "def renamed")}
    old, new = SourceTree(tree(tmp_path / "old", {})), SourceTree(tree(tmp_path / "new", changes))
    lines = list(port.lines(port.compare(RECORDS, READINGS, old, new), diff=diff))
    diffs = [lines.pop(4)] if diff else []
    assert lines == [
        "ours/hash.py: 1 unchanged, 0 changed, 1 gone",
        "  gone     vllm.core.moved",
        "ours/sched.py: 2 unchanged, 1 changed, 0 gone",
        "  changed  vllm.sched.Async.step",
        "ours/table.py: 0 unchanged, 0 changed, 0 gone",
        "ours/texts.py: 1 unchanged, 0 changed, 0 gone",
        "6 symbols: 4 unchanged, 1 changed, 1 gone; 2 of 4 files to look at",
    ]
    for text in diffs:
        assert "\n-        return budget\n+        return budget + 1" in text


def test_the_command_compares_the_real_records_with_themselves(tmp_path: Path) -> None:
    """Every symbol of ours is found in the installed release's source, without an import of it."""
    from ropeswitch.server.cli import main

    tree(tmp_path, {})
    assert main(["patches", "port", "--against", str(port.installed_folder())]) == 0
    assert main(["patches", "port", "--against", str(tmp_path)]) == 1
    assert main(["patches", "port", "--against", str(tmp_path / "vllm")]) == 2
