"""The V2 runner, asynchronous scheduling and our Triton kernels, all interpreted, with Phi-3."""

import pytest

from tests.exactness.runner_process import run_cases

CORE = ["runner_cases.py", "test_modes.py"]
OFFLOADING = ["test_kv_offloading.py"]
UPDATES = ["test_ladder_updates.py"]
SLEEP = ["test_sleep.py", "test_sleep_families.py"]
ALL = [*CORE, "test_prefix_cache.py", "test_features.py", "test_ladders.py"]
# Only `v2` runs without asynchronous scheduling, which is the V2 runner's default.
RUNS = [
    # V2 runner, asynchronous scheduling, our Triton kernels, then what is run: files, and the tests in them.
    pytest.param(
        "0", "1", "0", CORE, "asked_for or captured or streamed or preemption", id="v1-async", marks=pytest.mark.full
    ),
    pytest.param("1", "1", "0", CORE, "asked_for or captured or warm_up or streamed", id="v2-async"),
    pytest.param("1", "1", "0", ["test_policy.py"], "beside_requests", id="v2-async-reserve", marks=pytest.mark.full),
    pytest.param("1", "1", "0", SLEEP, "", id="v2-async-sleep", marks=pytest.mark.full),
    pytest.param("0", "1", "0", SLEEP[:1], "", id="v1-async-sleep", marks=pytest.mark.full),
    pytest.param("0", "1", "0", ["test_policy.py"], "beside_requests", id="v1-async-reserve", marks=pytest.mark.full),
    pytest.param("1", "1", "1", CORE, "asked_for", id="v2-async-triton", marks=pytest.mark.full),
    pytest.param("1", "1", "0", ["test_parallel.py"], "tp2", id="v2-async-two-ranks", marks=pytest.mark.full),
    pytest.param("0", "0", "1", CORE, "asked_for", id="v1-triton", marks=pytest.mark.full),
    pytest.param("0", "1", "0", ALL, "", id="v1-async-everything", marks=pytest.mark.full),
    pytest.param("1", "0", "0", CORE, "mixed_batch or preemption or streamed", id="v2", marks=pytest.mark.full),
    pytest.param("1", "1", "0", ALL, "", id="v2-async-everything", marks=pytest.mark.full),
    pytest.param("0", "1", "0", UPDATES, "", id="v1-async-updates", marks=pytest.mark.full),
    pytest.param("1", "1", "0", UPDATES, "", id="v2-async-updates", marks=pytest.mark.full),
    pytest.param("1", "1", "1", UPDATES, "recomputed_in_the_new", id="v2-async-triton-updates", marks=pytest.mark.full),
    pytest.param("0", "1", "0", OFFLOADING, "", id="v1-async-offloading", marks=pytest.mark.full),
    pytest.param("1", "1", "0", OFFLOADING, "", id="v2-async-offloading", marks=pytest.mark.full),
]  # fmt: skip


@pytest.mark.parametrize(("v2", "asynchronous", "triton", "files", "chosen"), RUNS)
def test_cases(v2: str, asynchronous: str, triton: str, files: list[str], chosen: str) -> None:
    # Two ranks are among the long tests whatever they run on.
    marked = "full" if chosen == "tp2" else "full or not full" if files == OFFLOADING else "not full"
    run_cases(v2, asynchronous, triton, files, chosen, marked)
