"""Models other than a LongRoPE Phi-3 in every mode of the engine: a table of models, and of other files' tests for each.

Models: plain ones with the automatic ladder, by vLLM's code and by its Transformers backend; latent attention, kept as
latents (in float32 without chunked prefills and prefix cache) and expanded to keys and values; targets with a draft model;
and one of each mechanism of ``families.py``: a base for each type of layer, attention scaled by positions (in two ways),
recurrent layers (and Mamba-2 ones), scaling that the model was trained with, a text model inside a multimodal one, a base
that no config states.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import vllm.envs
from transformers import SmolLM3Config, SmolLM3ForCausalLM
from vllm import LLM

from ropeswitch.model_patches.switch.config.settings import settings_of
from ropeswitch.model_patches.switch.parts import PARTS
from tests.exactness import checkpoints, test_modes, test_parallel, test_prefix_cache
from tests.exactness.auto_cases import AUTO, PLAIN, WINDOW, check_twice, yarn_sets
from tests.exactness.batches import Start, check_batch
from tests.exactness.checkpoints import SHAPE
from tests.exactness.conftest import starting
from tests.exactness.draft_models import KINDS
from tests.exactness.engines import greedy, prompts, run, scheduler_of
from tests.exactness.families import FAMILIES
from tests.exactness.latent_models import (
    EXPANDED_PER_TOKEN,
    LATENT_PER_TOKEN,
    LONGEST,
    REFERENCE_KERNEL,
    TRAINED_SETS,
    starting_trained,
    trained,
)
from tests.exactness.reference import Oracle, Reference
from tests.exactness.static_reference import StaticReference
from tests.exactness.test_auto_ladder import checkpoint
from tests.exactness.test_prefix_cache import cached_tokens

SETS = ("original", "128", "256", "480")
# Whose angles a compiled graph could keep: a base for each type of layer, recurrent layers, a table of the layer's own.
COMPILED = ("gemma3", "falcon-h1", "gptj")
MECHANISMS = ("gemma3", "ministral3", "lfm2", "gpt-oss", "llama4", "falcon-h1", "idefics3", "olmo3", "gptj")
DRAFTS = ("draft_model", "eagle")
# A process of `test_runners.py` runs what is among the long tests elsewhere.
INTERPRETED = "ROPESWITCH_TEST_ASYNC" in os.environ


@dataclass(frozen=True)
class Served:
    """A checkpoint, which tests are given for their Phi-3, what is right for it, and what starts its engines."""

    folder: Path
    reference: Oracle
    starts: Callable[[Start], Start]
    environment: Mapping[str, str] = field(default_factory=dict)


def automatic(start: Start) -> Start:
    def start_engine(folder: Path, **changes: Any) -> LLM:
        # All parts, as `ropeswitch serve` has them: tests compare the patches that workers report.
        llm = start(folder, AUTO | {"parts": list(PARTS)}, **({"max_model_len": LONGEST} | changes))
        settings = settings_of(llm.llm_engine.vllm_config)
        assert settings is not None and settings.ladder.names == SETS
        return llm

    return start_engine


def plain(folder: Path) -> Served:
    return Served(folder, StaticReference.load(folder, yarn_sets(PLAIN, (128, 256, LONGEST))), automatic)


def smollm3(folder: Path) -> Served:
    """A SmolLM3 whose second layer does not rotate."""
    values: dict[str, Any] = SHAPE | {"max_position_embeddings": WINDOW, "no_rope_layer_interval": 2}
    return plain(checkpoints.save(SmolLM3ForCausalLM, SmolLM3Config(rope_parameters=PLAIN, **values), folder, 5))


def latent(folder: Path, per_token: int, environment: Mapping[str, str], **arguments: Any) -> Served:
    reference = StaticReference.load(trained(folder), TRAINED_SETS)
    return Served(folder, reference, lambda start: starting_trained(start, per_token, **arguments), environment)


def drafted(kind: str, folder: Path) -> Served:
    """A target with a draft model that has errors: some drafts are accepted, others are not."""
    pair = KINDS[kind](folder, noise=0.05)
    speculative = pair.speculative | {"num_speculative_tokens": 3}
    starts = partial(partial, speculative_config=speculative)
    return Served(pair.target, Reference.load(pair.reference), starts)


def mechanism(name: str, folder: Path) -> Served:
    family = FAMILIES[name]
    *shorter, last = family.sets.items()
    sets = dict(shorter) | {LONGEST: dict(last[1]) | {"factor": LONGEST / WINDOW}}

    def starts(start: Start) -> Start:
        return lambda folder, **changes: start(
            folder, family.key, **{"max_model_len": LONGEST} | dict(family.engine) | changes
        )

    return Served(family.save(folder), family.reference(folder, sets), starts)


MODELS: dict[str, Callable[[Path], Served]] = {
    "auto": lambda folder: plain(checkpoint(folder, "Phi3")[0]),
    "transformers": smollm3,
    "latent": lambda folder: latent(folder, LATENT_PER_TOKEN, {}, **REFERENCE_KERNEL),
    "expanded": lambda folder: latent(folder, EXPANDED_PER_TOKEN, {"VLLM_MLA_DISABLE": "1"}),
    **{kind: partial(drafted, kind) for kind in DRAFTS},
    **{name: partial(mechanism, name) for name in MECHANISMS},
}


def two_sets_crossed_by_one_request(start: Start, phi3: Path, phi3_reference: StaticReference) -> None:
    check_twice(start(phi3), phi3_reference)


def forced_sets_of_the_ladder(start: Start, phi3: Path, phi3_reference: StaticReference) -> None:
    """A set asked for by name serves the request at every length, beside requests that switch."""
    names = [*SETS, None] * 2
    token_lists = prompts([30] * 5 + [110] * 5)
    params = [greedy(12) if name is None else greedy(12, extra_args={"rope_factor_set": name}) for name in names]
    sets: dict[str | None, Oracle] = {
        None: phi3_reference,
        **dict(zip(SETS, phi3_reference.by_end.values(), strict=True)),
    }
    for prompt, name, answer in zip(token_lists, names, run(start(phi3), token_lists, params), strict=True):
        sets[name].check(prompt, *answer)


def a_crossing_with_drafts_leaves_both_sets_cached(start: Start, phi3: Path, phi3_reference: Oracle) -> None:
    """On 0.32.0, an EAGLE head recomputes the last cached block, and one is all that the short set has of this prompt."""
    llm = start(phi3, enable_prefix_caching=True)
    dropped = scheduler_of(llm).use_eagle_block_drop
    (prompt,) = prompts([60], seed=13)
    tokens, log_probs = run(llm, [prompt], greedy(80))[0]
    phi3_reference.check(prompt, tokens, log_probs)
    assert cached_tokens(llm, prompt + tokens) == (96 if dropped else 128)
    assert cached_tokens(llm, prompt) == (0 if dropped else 32)


def drafts_on_two_ranks(start_processes: Start, phi3: Path, phi3_reference: Oracle) -> None:
    """Twice, the second time with what the prefix cache has of it."""
    llm = start_processes(phi3, tensor_parallel_size=2, max_num_batched_tokens=96)
    check_batch(llm, phi3_reference)
    check_batch(llm, phi3_reference)


def a_mechanism_on_two_ranks(start_processes: Start, phi3: Path, phi3_reference: StaticReference) -> None:
    check_twice(start_processes(phi3, tensor_parallel_size=2, max_num_batched_tokens=96), phi3_reference)


EAGER = [test_modes.test_eager_mixed_batch_leaks_no_block, test_modes.test_preemption]
MODES = [*EAGER, test_modes.test_compiled]
CHUNKED = [test_modes.test_chunked_prefill]
STREAMED = [test_modes.test_streamed_steps_deliver_every_token_once_through_aborts]
REQUESTS = [
    *STREAMED, test_modes.test_priority_scheduling, test_modes.test_prompt_log_probabilities,
    test_modes.test_several_choices,
]  # fmt: skip
UNCACHED = [test_modes.test_prefix_caching_off]
WARM = [test_prefix_cache.test_cold_and_warm]
CACHE = [
    *WARM, test_prefix_cache.test_a_crossing_leaves_both_sets_cached, test_prefix_cache.test_a_users_salt_is_kept,
    test_prefix_cache.test_sets_share_no_block,
]  # fmt: skip
RANKS = [test_parallel.test_two_ranks]
SETS_CROSSED = [two_sets_crossed_by_one_request, forced_sets_of_the_ladder]
WITH_DRAFTS = [
    test_modes.test_forced_sets, a_crossing_with_drafts_leaves_both_sets_cached, drafts_on_two_ranks,
]  # fmt: skip
CASES: dict[str, list[Callable[..., None]]] = {
    "auto": MODES + CHUNKED + REQUESTS + UNCACHED + CACHE + RANKS + SETS_CROSSED,
    "transformers": MODES + CHUNKED + REQUESTS + UNCACHED + CACHE + RANKS + SETS_CROSSED,
    "latent": MODES + REQUESTS + RANKS,
    "expanded": [*MODES[1:], *CHUNKED, *CACHE],
    **{kind: MODES + CHUNKED + STREAMED + UNCACHED + WARM + WITH_DRAFTS for kind in DRAFTS},
    **{name: [*(MODES if name in COMPILED else EAGER), *CHUNKED, a_mechanism_on_two_ranks] for name in MECHANISMS},
}
if INTERPRETED:
    from tests.exactness import runner_cases

    captured = runner_cases.test_a_captured_graph_would_read_the_same_buffers
    asked_for = runner_cases.test_the_engine_is_the_one_that_was_asked_for
    runners = [captured, runner_cases.test_v1_keeps_true_positions_and_dummy_runs_read_rows, runner_cases.test_warm_up]
    for model, more in (("auto", [asked_for, *runners]), ("transformers", runners), ("latent", [asked_for, captured])):
        CASES[model] += more


def rows() -> Iterator[Any]:
    """Model, case and the case's own arguments; two ranks are among the long tests whatever they run on."""
    for model, cases in CASES.items():
        for case in cases:
            for ranks in ("tensor", "pipeline") if case in RANKS else (None,):
                arguments = {"ranks": {f"{ranks}_parallel_size": 2}} if ranks else {}
                name = f"{model}-{case.__name__.removeprefix('test_')}" + (f"-{ranks[0]}p2" if ranks else "")
                long = not INTERPRETED or "two_ranks" in name
                yield pytest.param(model, case, arguments, id=name, marks=pytest.mark.full if long else ())


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return MODELS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def phi3(served: Served) -> Path:
    return served.folder


@pytest.fixture
def phi3_reference(served: Served) -> Oracle:
    return served.reference


@pytest.fixture
def start(served: Served) -> Iterator[Start]:
    # An engine in this process makes vLLM keep its environment as it is.
    vllm.envs.disable_envs_cache()
    for start in starting(VLLM_ENABLE_V1_MULTIPROCESSING="0", **served.environment):
        yield served.starts(start)
    vllm.envs.disable_envs_cache()


@pytest.fixture
def start_processes(start_processes: Start, served: Served) -> Start:
    return served.starts(start_processes)


@pytest.mark.parametrize(("served", "case", "arguments"), [*rows()], indirect=["served"])
def test_case(
    request: pytest.FixtureRequest, served: Served, case: Callable[..., None], arguments: dict[str, Any]
) -> None:
    fixtures = inspect.signature(case).parameters.keys() - arguments.keys()
    case(**arguments, **{name: request.getfixturevalue(name) for name in fixtures})
