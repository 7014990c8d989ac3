"""What vLLM uses on GPUs, run on a CPU: the V2 runner, asynchronous scheduling and our Triton kernels, all interpreted.

Triton and vLLM look at the environment while they are imported, so each combination has a pytest process of its own; see
``interpreted.py`` for what the processes change.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
# Inductor wants a real Triton.
NOT_INTERPRETED = "not compiled"

CORE = ["runner_cases.py", "test_modes.py"]
AUTO = ["test_auto_modes.py"]
TRANSFORMERS = ["test_transformers_modes.py"]
FAMILY = ["test_family_modes.py"]
OFFLOADING = ["test_kv_offloading.py"]
LATENT = ["test_latent_modes.py"]
UPDATES = ["test_ladder_updates.py"]
SLEEP = ["test_sleep.py", "test_sleep_families.py"]
DRAFTS = ["test_drafts.py", "test_draft_modes.py"]
ALL = [*CORE, "test_prefix_cache.py", "test_features.py", "test_ladders.py"]
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
    pytest.param("1", "0", "0", ALL, "", id="v2-everything", marks=pytest.mark.full),
    pytest.param("1", "1", "0", ALL, "", id="v2-async-everything", marks=pytest.mark.full),
    pytest.param("0", "1", "0", AUTO, "", id="v1-async-auto-ladder", marks=pytest.mark.full),
    pytest.param("1", "0", "0", AUTO, "", id="v2-auto-ladder", marks=pytest.mark.full),
    pytest.param("1", "1", "0", AUTO, "", id="v2-async-auto-ladder", marks=pytest.mark.full),
    pytest.param("1", "1", "1", AUTO, "asked_for", id="v2-async-triton-auto-ladder", marks=pytest.mark.full),
    pytest.param("1", "1", "0", AUTO, "tp2", id="v2-async-two-ranks-auto-ladder", marks=pytest.mark.full),
    pytest.param("0", "1", "0", FAMILY, "", id="v1-async-families", marks=pytest.mark.full),
    pytest.param("1", "0", "0", FAMILY, "", id="v2-families", marks=pytest.mark.full),
    pytest.param("1", "1", "0", FAMILY, "", id="v2-async-families", marks=pytest.mark.full),
    pytest.param("1", "1", "0", FAMILY, "two_ranks", id="v2-async-two-ranks-families", marks=pytest.mark.full),
    pytest.param("0", "1", "0", TRANSFORMERS, "", id="v1-async-transformers-backend", marks=pytest.mark.full),
    pytest.param("1", "0", "0", TRANSFORMERS, "", id="v2-transformers-backend", marks=pytest.mark.full),
    pytest.param("1", "1", "0", TRANSFORMERS, "", id="v2-async-transformers-backend", marks=pytest.mark.full),
    pytest.param("1", "1", "0", TRANSFORMERS, "tp2", id="v2-async-two-ranks-transformers", marks=pytest.mark.full),
    pytest.param("0", "1", "0", UPDATES, "", id="v1-async-updates", marks=pytest.mark.full),
    pytest.param("1", "0", "0", UPDATES, "", id="v2-updates", marks=pytest.mark.full),
    pytest.param("1", "1", "0", UPDATES, "", id="v2-async-updates", marks=pytest.mark.full),
    pytest.param("1", "1", "1", UPDATES, "", id="v2-async-triton-updates", marks=pytest.mark.full),
    pytest.param("0", "1", "0", LATENT, "", id="v1-async-latent", marks=pytest.mark.full),
    pytest.param("1", "0", "0", LATENT, "", id="v2-latent", marks=pytest.mark.full),
    pytest.param("1", "1", "0", LATENT, "", id="v2-async-latent", marks=pytest.mark.full),
    pytest.param("1", "1", "1", LATENT, "asked_for", id="v2-async-triton-latent", marks=pytest.mark.full),
    pytest.param("0", "1", "0", OFFLOADING, "", id="v1-async-offloading", marks=pytest.mark.full),
    pytest.param("1", "0", "0", OFFLOADING, "", id="v2-offloading", marks=pytest.mark.full),
    pytest.param("1", "1", "0", OFFLOADING, "", id="v2-async-offloading", marks=pytest.mark.full),
    pytest.param("1", "1", "0", LATENT, "tp2", id="v2-async-two-ranks-latent", marks=pytest.mark.full),
    pytest.param("0", "1", "0", DRAFTS, "", id="v1-async-drafts", marks=pytest.mark.full),
    pytest.param("1", "0", "0", DRAFTS, "", id="v2-drafts", marks=pytest.mark.full),
    pytest.param("1", "1", "0", DRAFTS, "", id="v2-async-drafts", marks=pytest.mark.full),
    pytest.param("1", "1", "0", DRAFTS, "tp2", id="v2-async-two-ranks-drafts", marks=pytest.mark.full),
]  # fmt: skip


@pytest.mark.parametrize(("v2", "asynchronous", "triton", "files", "chosen"), RUNS)
def test_cases(v2: str, asynchronous: str, triton: str, files: list[str], chosen: str) -> None:
    environment = os.environ | {
        "VLLM_USE_V2_MODEL_RUNNER": v2,
        "ROPESWITCH_TEST_ASYNC": asynchronous,
        "ROPESWITCH_TEST_TRITON": triton,
        "PYTHONPATH": os.pathsep.join((str(FOLDER / "spawned"), str(FOLDER.parents[1]))),
    }
    selected = f"({chosen}) and {NOT_INTERPRETED}" if chosen else NOT_INTERPRETED
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        # Logs would push the assertion out of the text that is shown below.
        "--show-capture=no",
        "-p",
        "tests.exactness.interpreted",
        "-m",
        # Two ranks are among the long tests whatever they run on.
        "full" if chosen in ("tp2", "two_ranks") else "full or not full" if files == OFFLOADING else "not full",
        "-k",
        selected,
    ]
    done = subprocess.run(
        [*command, *(str(FOLDER / file) for file in files)],
        cwd=FOLDER.parents[1], env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert " passed" in done.stdout
