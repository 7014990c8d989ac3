"""M-RoPE after sleep level 2: rows, and on the V2 runner the row numbers of each axis, are written anew."""

from pathlib import Path

import pytest

from tests.exactness.batches import Start
from tests.exactness.sleeping import sleep_and_wake, sleeping_cpus
from tests.vision.test_media import CASES, check, serving

# An image, a switch while decoding, text alone, a video.
FEW = [CASES[0], (CASES[3][0], 20), CASES[7], (CASES[8][0], 10)]


@pytest.mark.full
def test_level_2_with_positions_on_several_axes(start: Start, tmp_path: Path) -> None:
    with sleeping_cpus():
        llm, media = serving(start, tmp_path, "qwen2.5-vl")
        check(llm, media, FEW)
        sleep_and_wake(llm)
        check(llm, media, FEW)
