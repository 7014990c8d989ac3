"""Folders of chronicles for searches and evaluation, none of which a training row is made of."""

import random
from pathlib import Path

from ropeswitch.factors.whole_file import save_text
from ropeswitch.models.miniature.chronicle import chronicle
from ropeswitch.models.miniature.rows import CHARACTERS_A_TOKEN

TEXTS = 12


def text_folder(work: Path, purpose: str, length: int, count: int = TEXTS) -> Path:
    """A folder of ``count`` chronicles of at least ``length`` tokens, others for another purpose; made where missing."""
    folder = work / "texts" / f"{purpose}-{length}"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{number}.txt"
        if not path.exists():
            save_text(path, chronicle(random.Random(f"{purpose}-{length}-{number}"), length * CHARACTERS_A_TOKEN))
    return folder
