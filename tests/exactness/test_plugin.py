"""The switch as a vLLM plugin: plain ``vllm.LLM`` and ``vllm serve`` with the key and without it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.file import LadderFile, save
from tests.exactness.auto_cases import yarn_sets
from tests.exactness.checkpoints import factors
from tests.exactness.engines import prompts
from tests.exactness.reference import Oracle, Reference
from tests.exactness.static_reference import StaticReference

# Below the limit of 64 tokens, across it while decoding, and above it.
LENGTHS = [20, 58, 63, 90]
UNKNOWN = (
    "vllm_xargs.rope_factor_set: unknown factor set 'nope'; this server has 'short', 'long' "
    "(parameter=vllm_xargs.rope_factor_set)"
)
STARTED = "ropeswitch.server.start"
SWITCH = ("ropeswitch.factors.", "ropeswitch.kernels.", "ropeswitch.model_patches.switch.")


def run_engine(
    folder: Path, key: Any, lengths: list[int], cases: list[dict[str, Any]] | None = None, **flags: Any
) -> subprocess.CompletedProcess[str]:
    given = map(json.dumps, (key, prompts(lengths), flags, cases or [{}]))
    command = [sys.executable, "-m", "tests.exactness.plugin_engine", str(folder), *given]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})


def found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
    assert line is not None, done.stderr[-3000:]
    values: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return values


def check(reference: Oracle, outputs: list[Any]) -> None:
    for prompt, (tokens, log_probs) in zip(prompts(LENGTHS), outputs, strict=True):
        reference.check(prompt, tokens, log_probs)


def test_the_switch_alone_is_exact(phi3: Path, phi3_reference: Reference) -> None:
    """Every part left out: what remains loads no other module of ours, and its tokens are Hugging Face's."""
    values = found(run_engine(phi3, {"parts": []}, LENGTHS, enable_prefix_caching=False))
    check(phi3_reference, values["outputs"][0])
    assert values["refused"] == UNKNOWN
    assert values["scheduler"] == "ropeswitch.model_patches.switch.engine.scheduler.LadderScheduler"
    beside = [name for name in values["modules"] if name.count(".") > 1 and not f"{name}.".startswith(SWITCH)]
    assert set(beside) == {STARTED, f"{STARTED}.refusals"}


@pytest.mark.full
def test_a_factor_file_with_the_parts_of_plain_vllm(llama: Path, tmp_path: Path) -> None:
    sets = [
        {"name": "short", "max_length": 64, "factors": [1.0] * 16},
        {"name": "long", "max_length": 512, "factors": factors(16, 1.1, 9.0), "scale": 1.1},
    ]
    ladder = FactorLadder.checked(sets)
    save(tmp_path / "factors.json", LadderFile(ladder))
    values = found(run_engine(llama, {"factors": str(tmp_path / "factors.json")}, LENGTHS))
    check(Reference.load(llama, ladder), values["outputs"][0])
    assert values["refused"] == UNKNOWN
    assert values["scheduler"].startswith("ropeswitch.model_patches.scheduling.")


@pytest.mark.full
def test_the_automatic_ladder_and_sets_asked_for(llama: Path) -> None:
    """By length, and in the last and the first set whatever the length, against Hugging Face's static YaRN."""
    reference = StaticReference.load(llama, yarn_sets({"rope_type": "default", "rope_theta": 10000.0}))
    cases: list[dict[str, Any]] = [{}, *({"extra_args": {"rope_factor_set": name}} for name in ("512", "original"))]
    values = found(run_engine(llama, {"ladder": "auto"}, LENGTHS, cases, max_model_len=512))
    assert "this server has 'original', '128', '256', '512'" in values["refused"]
    oracles = (reference, reference.by_end[512], reference.by_end[64])
    for oracle, outputs in zip(oracles, values["outputs"], strict=True):
        check(oracle, outputs)


@pytest.mark.full
def test_without_the_key_stock_vllm_is_stock(phi3: Path) -> None:
    values = found(run_engine(phi3, None, [20]))
    assert values["scheduler"] == "vllm.v1.core.sched.scheduler.Scheduler"
    switch = ["", ".config", ".config.key", ".config.variables", ".plugin"]
    starting = ["", ".refusals"]
    assert [name for name in values["modules"] if name.count(".") > 1] == [
        *(f"ropeswitch.model_patches.switch{name}" for name in switch), *(f"{STARTED}{name}" for name in starting),
    ]  # fmt: skip
    # Stock's own answer to a config whose window is 64 tokens.
    assert "maximum context length is 64 tokens" in values["refused"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({1: 2, "b": 3}, "1: unknown field"),
        ({"ladder": "foo"}, "ladder: 'foo'"),
        ({"ladder": "yarn:4x"}, "ladder: 'yarn:4x' would replace the LongRoPE factors"),
        ({"native_window": 0}, "native_window: 0"),
        ({"native_window": 64}, "native_window: 64 .* LongRoPE factors"),
        ({"origins": []}, "origins: goes with sets"),
        ({"ladder": "auto", "factors": "x"}, "has both ladder and factors"),
        ([], r"\[\] must be a JSON object"),
        ({"parts": ["guards"]}, r"parts: \['guards'\]"),
        ({"parts": [], "length_aware": True}, "length_aware and step_latency_target need the part 'scheduling'"),
        ({"factors": None}, "factors: None"),
        ({"theta": "10000"}, "theta: '10000'"),
        ({"theta": 5.0}, "rope_theta 5.0, .* 10000.0"),
        ({"step_latency_target": 100}, "step_latency_target: 100"),
        ({"policy": "longest"}, "policy: 'longest'"),
        ({"angles": "float"}, "angles: 'float'"),
    ],
)
def test_a_wrong_key_stops_the_start(phi3: Path, key: Any, message: str) -> None:
    from vllm import EngineArgs

    args = EngineArgs(model=str(phi3), skip_tokenizer_init=True, additional_config={"ropeswitch": key})
    with pytest.raises(ValueError, match=message):
        args.create_engine_config()


def test_the_entry_point_needs_the_standard_library_alone() -> None:
    """It imports where vLLM cannot, and a vLLM without any config that it knows stays as it is."""
    code = (
        "import sys\n"
        "sys.modules['vllm.engine.arg_utils'] = sys.modules['vllm.config'] = None\n"
        "from ropeswitch.model_patches.switch import plugin\n"
        "third_party = [n for n in ('torch', 'vllm', 'numpy', 'pydantic') if n in sys.modules]\n"
        "plugin.register()\n"
        "print('loaded', third_party)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "loaded []" in done.stdout, done.stderr
    assert "additional_config.ropeswitch: this vLLM is unsupported" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("; the key and the variables have no effect")


@pytest.mark.full
def test_a_vllm_with_other_engine_arguments_refuses_the_key_and_nothing_else() -> None:
    code = (
        "from vllm.config import VllmConfig\n"
        "from vllm.engine.arg_utils import EngineArgs\n"
        "del EngineArgs.create_engine_config\n"
        "from ropeswitch.model_patches.switch import plugin\n"
        "plugin.register()\n"
        "VllmConfig()\n"
        "print('stock')\n"
        "VllmConfig(additional_config={'ropeswitch': {}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "stock" in done.stdout, done.stderr
    assert "additional_config.ropeswitch: this vLLM is unsupported: " in done.stderr.splitlines()[-1]
