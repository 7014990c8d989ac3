"""Finished work: kept through kills and full disks, and no file of somebody else is touched."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.kept import Kept

FULL = """
import resource, sys
from pathlib import Path
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.kept import Kept
kept = Kept(Path(sys.argv[1]), {"format": "a"})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for number in range(1, 100):
    try:
        kept.get(number, lambda: "x" * 20)
    except FactorError as error:
        sys.exit(f"{number} {error}")
"""
WHOLE = json.dumps({"format": "a"}) + "\n" + json.dumps({"of": [1, "b"], "found": [0.5]}) + "\n"


def test_a_full_disk_leaves_whole_pieces(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, "kept.jsonl"], capture_output=True, text=True, check=False)
    kept = re.fullmatch(r"(\d+) 'kept.jsonl': cannot be written: File too large\n", done.stderr)
    assert kept, done.stderr
    assert len(Kept(Path("kept.jsonl"), {"format": "a"})) == int(kept[1]) - 1 > 3


def test_what_was_killed_in_the_middle_is_done_again(folder: Path) -> None:
    Path("kept.jsonl").write_text(WHOLE + '{"of": "c", "fou')
    kept = Kept(Path("kept.jsonl"), {"format": "a"})
    assert kept.get((1, "b"), lambda: 1 / 0) == [0.5]  # type: ignore[arg-type,return-value]
    assert kept.get("c", lambda: {"d": 2}) == {"d": 2}
    assert Path("kept.jsonl").read_text() == WHOLE + '{"of": "c", "found": {"d": 2}}\n'


def test_two_runs_with_one_file_lose_nothing(folder: Path) -> None:
    runs = [Kept(Path("kept.jsonl"), {"format": "a"}) for _ in range(2)]
    for number in range(4):
        runs[number % 2].get(number, lambda: "x")
    assert len(Kept(Path("kept.jsonl"), {"format": "a"})) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Somebody else's, also without a line break at the end: nothing of it may be cut.
        *(
            (text, "'kept.jsonl': holds no finished work of this command")
            for text in ("nonsense", "{}\n", "[]\n", WHOLE[2:])
        ),
        (WHOLE + '{"task": 1}\n', "holds no finished work"),
        (WHOLE.replace("0.5", "NaN"), "contains NaN"),
        (WHOLE.replace('"a"', '"other"'), "format: it was made with 'other', but this run has 'a'; remove the file"),
    ],
)
def test_other_files_are_left_alone(folder: Path, text: str, message: str) -> None:
    Path("kept.jsonl").write_text(text)
    with pytest.raises(FactorError, match=re.escape(message)):
        Kept(Path("kept.jsonl"), {"format": "a"})
    assert Path("kept.jsonl").read_text() == text
