"""A million tokens for real: one prompt below and beyond a limit of factor sets, through HTTP, against Hugging Face."""

from pathlib import Path

import pytest
import torch

from tests.exactness.reference import Reference
from tests.loadtests.million.model import random_tokens, write_model
from tests.loadtests.million.reference import LongReference
from tests.loadtests.million.scenario import serve_and_check


@pytest.mark.million
# Two prefills of a million tokens, a quarter of an hour and more each on two cores.
@pytest.mark.timeout(4 * 3600)
def test_a_million_tokens_on_both_sides_of_the_limit(tmp_path: Path) -> None:
    serve_and_check(tmp_path, 1_000_000, 1 << 20)


@pytest.mark.full
def test_a_few_thousand_tokens_on_both_sides_of_the_limit(tmp_path: Path) -> None:
    serve_and_check(tmp_path, 5000, 8192)


@pytest.mark.parametrize(("length", "name"), [(200, "short"), (300, "long")])
def test_the_reference_is_an_ordinary_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, name: str
) -> None:
    """At lengths at which Hugging Face's own angles are right, over several chunks."""
    monkeypatch.setattr("tests.loadtests.million.reference.CHUNK", 64)
    folder = write_model(tmp_path, 256, 1024)
    tokens = random_tokens(length)
    whole = Reference.load(folder).log_probs(tokens)
    reference = LongReference(folder, tokens[:-10])
    assert reference.list_for(length) == name
    # All ten tokens after the prompt, then the last four of them: the cache of the prompt is as it was.
    for first in (0, 6):
        found = reference.log_probs(tokens[-10:], first, name)
        torch.testing.assert_close(found.float(), whole[length - 11 + first : -1], atol=1e-4, rtol=0)
    wrong = reference.log_probs(tokens[-10:], 0, "short" if name == "long" else "long")
    assert (wrong.float() - whole[length - 11 : -1]).abs().amax(1).min() > 0.1
