"""Requests of text alone to models with a vision encoder equal Hugging Face with static YaRN."""

from pathlib import Path

import pytest

from tests.exactness.auto_cases import CHUNKED, check_twice
from tests.exactness.batches import Start
from tests.exactness.static_reference import StaticReference
from tests.vision.families import FAMILIES

NO_MEDIA = {"limit_mm_per_prompt": {"image": 0, "video": 0}}


@pytest.mark.full
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(start: Start, tmp_path: Path, name: str) -> None:
    each = FAMILIES[name]
    folder = each.save(tmp_path)
    check_twice(start(folder, each.key, **CHUNKED, **NO_MEDIA, **each.engine), StaticReference.load(folder, each.sets))
