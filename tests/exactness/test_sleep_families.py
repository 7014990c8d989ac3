"""Each kind of tensor that sleep level 2 discards: rows of several bases, true positions, softmax scales, drafts' angles."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm import LLM

from tests.exactness.acceptance import watch
from tests.exactness.auto_cases import check_twice
from tests.exactness.batches import Start, check
from tests.exactness.draft_models import KINDS
from tests.exactness.engines import greedy, prompts, scheduler_of
from tests.exactness.families import FAMILIES
from tests.exactness.latent_models import LATENT_PER_TOKEN, REFERENCE_KERNEL, TRAINED_SETS, starting_trained, trained
from tests.exactness.reference import Reference
from tests.exactness.sleeping import FROM_FOLDER, Pool, sleep_and_wake, sleeping_cpus
from tests.exactness.static_reference import StaticReference

# Several bases; true positions, in two models; recurrent layers; vLLM's Transformers backend; a base that no config states.
MECHANISMS = ("gemma3", "ministral3", "llama4", "lfm2", "olmo3", "gptj")
CASES = [(20, 4), (60, 8), (127, 4), (250, 8)]
pytestmark = [] if "ROPESWITCH_TEST_ASYNC" in os.environ else [pytest.mark.full]


@pytest.fixture(autouse=True)
def pool() -> Iterator[Pool]:
    with sleeping_cpus() as pool:
        yield pool


def check_over_a_sleep(llm: LLM, reference: StaticReference) -> None:
    check_twice(llm, reference, CASES)
    sleep_and_wake(llm)
    check_twice(llm, reference, CASES)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism(start: Start, tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    llm = start(family.save(tmp_path), family.key, **{"max_model_len": 512} | dict(family.engine))
    check_over_a_sleep(llm, family.reference(tmp_path, family.sets))


def test_softmax_scales(start: Start, tmp_path: Path) -> None:
    llm = starting_trained(start, LATENT_PER_TOKEN, **REFERENCE_KERNEL)(trained(tmp_path))
    check_over_a_sleep(llm, StaticReference.load(tmp_path, TRAINED_SETS))


def test_drafts(start: Start, tmp_path: Path) -> None:
    """The target accepts as many drafts as before, once the draft model has its weights again."""
    pair = KINDS["draft_model"](tmp_path)
    speculative = pair.speculative | {"num_speculative_tokens": 3}
    llm = start(pair.target, speculative_config=speculative, weight_transfer_config=FROM_FOLDER)
    reference, token_lists = Reference.load(pair.reference), prompts([20, 60, 64, 100])
    sleep_and_wake(llm)
    llm.start_draft_weight_update()
    llm.update_weights({"update_info": {"folder": speculative["model"]}})
    llm.finish_weight_update()
    found = watch(scheduler_of(llm))
    check(llm, reference, token_lists, greedy(16))
    assert min(count.share for count in (found.by_set[0], found.by_set[1])) > pair.accepted
