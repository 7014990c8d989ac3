"""The V2 runner, asynchronous scheduling and our Triton kernels, all interpreted, with Phi-3."""

import pytest

from tests.exactness.runner_process import run_cases

CORE = ["runner_cases.py", "test_modes.py"]
ALL = [*CORE, "test_prefix_cache.py", "test_features.py", "test_ladders.py", "test_policy.py"]
ALL += ["test_kv_offloading.py", "test_sleep.py"]
# Long tests are left out but for those of offloading, and models but for a few that sleep, since test_runners_models.py has
# them. Of two cases that differ in a number only, one runs.
CHOSEN = (
    "(not full or kv_offloading) and (not test_policy or length[reserve])"
    " and not (full_tier[1024] or start_tokens or test_families or llama_with_all or phi3_with_partial)"
    " and not (a_mechanism and (llama4 or olmo3 or gptj))"
)
# Only `v2` runs without asynchronous scheduling, which is the V2 runner's default. Runs share a process where they can: each
# takes 12 s of a core to import vLLM.
# One test of features is skipped on some CPUs.
RUNS = [
    # V2 runner, asynchronous scheduling, our Triton kernels, then what is run: files, the tests in them, and their number.
    pytest.param("1", "1", "0", CORE, "asked_for or captured or warm_up or streamed", 4, id="v2-async"),
    pytest.param("0", "1", "0", ALL, CHOSEN, 39, id="v1-async", marks=pytest.mark.full),
    pytest.param("1", "1", "0", [*ALL, "test_sleep_families.py"], CHOSEN, 44, id="v2-async-all", marks=pytest.mark.full),
    pytest.param(
        "1", "1", "1", [*CORE, "test_auto_modes.py", "test_latent_modes.py"],
        "asked_for or recomputed_in_the_new", 3, id="v2-async-triton", marks=pytest.mark.full,
    ),
    pytest.param("0", "0", "1", CORE, "asked_for", 1, id="v1-triton", marks=pytest.mark.full),
    pytest.param("1", "0", "0", CORE, "mixed_batch or preemption or streamed", 3, id="v2", marks=pytest.mark.full),
]  # fmt: skip


@pytest.mark.parametrize(("v2", "asynchronous", "triton", "files", "chosen", "at_least"), RUNS)
def test_cases(v2: str, asynchronous: str, triton: str, files: list[str], chosen: str, at_least: int) -> None:
    marked = "full or not full" if chosen == CHOSEN else "not full"
    run_cases(v2, asynchronous, triton, files, chosen, marked, at_least)
