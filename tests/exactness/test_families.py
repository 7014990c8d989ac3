"""Models with several bases, M-RoPE, position-scaled attention or recurrent layers equal Hugging Face with static YaRN."""

from collections.abc import Callable
from pathlib import Path

import pytest
from vllm import LLM

from tests.exactness.auto_cases import CHUNKED, check_twice
from tests.exactness.families import FAMILIES
from tests.exactness.static_reference import StaticReference

Start = Callable[..., LLM]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(start: Start, tmp_path: Path, name: str) -> None:
    each = FAMILIES[name]
    folder = each.save(tmp_path)
    check_twice(start(folder, each.key, **CHUNKED, **each.engine), StaticReference.load(folder, each.sets))
