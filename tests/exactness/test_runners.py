"""What vLLM uses on GPUs, on a CPU: the V2 runner, asynchronous scheduling and our Triton kernels, all interpreted.

Triton and vLLM look at the environment while they are imported, so each combination has a pytest process of its own; see
``interpreted.py`` for what the processes change.
"""

import os
from pathlib import Path

import pytest

from tests.exactness.batches import full_but
from tests.fresh_process import check_cases

FOLDER = Path(__file__).parent
CORE = ["runner_cases", "test_modes"]
ALL = [*CORE, "test_prefix_cache", "test_features", "test_ladders", "test_policy", "test_kv_offloading", "test_sleep"]
# Long tests are left out but for those of offloading, and models but for a few that sleep, since those of `MODELS` follow.
# Of two cases that differ in a number only, one runs.
CHOSEN = (
    "(not full or kv_offloading) and (not test_policy or length[reserve])"
    " and not (full_tier[1024] or start_tokens or test_families or phi3_with_partial)"
    " and not (a_mechanism and (llama4 or olmo3 or gptj))"
)
MODELS = ["test_model_modes", "test_drafts"]
# On V1 without asynchronous scheduling every mode of these models runs elsewhere. Here they run in a mixed batch, and some
# in captured graphs, whose buffers depend on the model's patches. Preemption, which takes three times as long, runs with an
# automatic ladder and with what keeps more than keys and values. Each kind of draft runs once, and an EAGLE head, which
# shares the target's cache, in these modes and with a warm prefix cache.
CHOSEN_MODELS = (
    "mixed_batch and not draft_model"
    " or captured and (auto or transformers or latent)"
    " or crossed_by_one and auto or forced and auto"
    " or preemption and (auto or falcon-h1 or eagle)"
    " or cold_and_warm and eagle"
    " or test_drafts"
)
RANKS = (
    "tp2 and (test_parallel or auto or transformers or latent) or two_ranks and (gemma3 or falcon-h1 or eagle)"
    " or local_layers"
)
ANY = "full or not full"
# Only `v2` runs without asynchronous scheduling, which is the V2 runner's default. Runs share a process where they can: each
# takes 12 s of a core to import vLLM.
RUNS = {
    # V2 runner, asynchronous scheduling, our Triton kernels; files, the tests in them by name and by mark, and the number
    # that must pass: with fewer, a part of the expression matches nothing any more. One is skipped on some CPUs.
    "v2-async": ("110", CORE, "asked_for or captured or warm_up or streamed", "not full", 4),
    "v1-async": ("010", [*CORE, "test_kv_offloading", "test_policy"], CHOSEN, ANY, 20),
    "v2-async-all": ("110", [*ALL, "test_sleep_families"], CHOSEN, ANY, 44),
    "v2-async-triton": ("111", [*CORE, "test_model_modes"], "asked_for", "not full", 3),
    "v1-triton": ("001", CORE, "asked_for", "not full", 1),
    "v2": ("100", CORE, "mixed_batch or preemption or streamed", "not full", 3),
    "v1-models": ("010", MODELS, CHOSEN_MODELS, "not full", 26),
    "v2-models": ("110", MODELS, CHOSEN_MODELS, "not full", 26),
    # Two ranks are among the long tests whatever they run on.
    "v2-two-ranks": ("110", [*MODELS, "test_parallel"], RANKS, "full", 8),
}


# The core tests have one run; in `make test-full` its cases are among those of `v2-async-all`.
SOON = "v2-async"
NAMES = [name for name in RUNS if name != SOON or "ALL_EXAMPLES" not in os.environ]


@pytest.mark.parametrize("name", full_but([SOON], NAMES))
def test_cases(name: str) -> None:
    runner, files, chosen, marked, at_least = RUNS[name]
    names = ("VLLM_USE_V2_MODEL_RUNNER", "ROPESWITCH_TEST_ASYNC", "ROPESWITCH_TEST_TRITON")
    paths = {"PYTHONPATH": os.pathsep.join((str(FOLDER / "spawned"), str(FOLDER.parents[1])))}
    # Inductor wants a real Triton.
    flags = ["-p", "tests.exactness.interpreted", "-m", marked, "-k", f"({chosen}) and not compiled"]
    variables = paths | dict(zip(names, runner, strict=True))
    check_cases(*(FOLDER / f"{file}.py" for file in files), at_least=at_least, flags=flags, variables=variables)
