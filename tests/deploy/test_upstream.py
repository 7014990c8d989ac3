"""The planner's rules and figures against vLLM 0.32.0's and transformers' own code."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm import EngineArgs
from vllm.config import ModelConfig, ParallelConfig
from vllm.distributed.utils import get_pp_indices
from vllm.usage.usage_lib import UsageContext

from ropeswitch.deploy.plan.costs import GIB, Workload, memory
from ropeswitch.deploy.plan.gpus import default_max_num_seqs, load
from ropeswitch.deploy.plan.layouts import Layout, broken_rule
from ropeswitch.deploy.plan.model_shape import DTYPE_BYTES, shape_from_config
from ropeswitch.deploy.plan.weights import parameter_count, stage_layers, stage_weights
from tests.deploy.configs import ALL, DENSE, LLAMA2_7B, MISTRAL_7B, MOE, PHI4_MINI, QWEN2_5_7B, SIX_PER_HEAD, Config
from tests.deploy.upstream import build, concurrency, kv_cache, model_config, refusal

SIZES = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 56, 64)
A100 = load()["A100-80GB"]
# More tokens than fit anywhere here.
LONG = 1 << 30
# One KV head: the most DCP there is.
ONE_KV_HEAD = MISTRAL_7B | {"num_key_value_heads": 1}
# A vocabulary and an MLP that few sizes divide.
ODD_SIZES = LLAMA2_7B | {"vocab_size": 32001, "intermediate_size": 11000, "num_hidden_layers": 7}
BIASED = LLAMA2_7B | {"attention_bias": True, "mlp_bias": True}
CONFIGS = DENSE | {"one-kv-head": ONE_KV_HEAD, "six-per-head": SIX_PER_HEAD, "odd-sizes": ODD_SIZES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _model(folder: Path, name: str, max_model_len: int = 4096) -> ModelConfig:
    return model_config(folder / name, (CONFIGS | MOE)[name], max_model_len)


@pytest.mark.full
@pytest.mark.parametrize("name", [*CONFIGS, "mixtral-8x7b"])
def test_the_plan_refuses_the_layouts_that_vllms_config_or_layers_refuse(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what they accept is accepted, but for a window with DCP, which the KV cache refuses later on."""
    model, shape = _model(folder, name), shape_from_config(name, (CONFIGS | MOE)[name])
    seen = set()
    assert refusal(model, Layout(1, 1, 2)) is None
    for tensor in SIZES:
        try:
            build(monkeypatch, model, Layout(tensor), 0)
            split = True
        except AssertionError:
            split = False
        for decode_context in SIZES:
            layout = Layout(tensor, decode_context)
            ours = broken_rule(shape, layout)
            if tensor % decode_context:
                with pytest.raises(ValueError, match="must be divisible by dcp_size"):
                    ParallelConfig(tensor_parallel_size=tensor, decode_context_parallel_size=decode_context)
                assert ours is not None
                continue
            windowed = decode_context > 1 and shape.sliding_window is not None
            refused = not split or windowed or refusal(model, layout) is not None
            assert (ours is not None) == refused, f"{layout}: {ours}"
            seen.add(refused)
    assert seen == {True, False}


LAYOUTS = [Layout(1), Layout(4), Layout(4, 1, 2), Layout(2, 1, 3), Layout(8, 1, 5)]
# Those that a model cannot have are refused, which the tests above compare.
# Upstream's model classes take ten seconds each to load: one dense and one of experts are among the core tests.
CORE = ("qwen2.5-7b", "phi-3.5-moe")
POSSIBLE = [
    pytest.param(name, layout, marks=() if name in CORE else pytest.mark.full)
    for name, config in (CONFIGS | MOE).items()
    for layout in LAYOUTS
    if broken_rule(shape_from_config(name, config), layout) is None
]


@pytest.mark.parametrize(("name", "layout"), POSSIBLE, ids=str)
def test_the_plan_has_the_bytes_of_vllms_weights(
    folder: Path, name: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage of vLLM's own models holds exactly the bytes that the plan says."""
    shape = shape_from_config(name, (CONFIGS | MOE)[name])
    model = _model(folder, name)
    assert model.dtype.itemsize == DTYPE_BYTES
    for stage in range(layout.pipeline):
        theirs = build(monkeypatch, model, layout, stage)
        size = sum(parameter.numel() * parameter.element_size() for parameter in theirs.parameters())
        assert stage_weights(shape, layout.tensor, layout.pipeline, stage).bytes(shape) == size, f"stage {stage}"


@pytest.mark.parametrize(
    ("gpu", "name", "gib"),
    [("A100-80GB", "NVIDIA A100-SXM4-80GB", 79.2), ("H100-80GB", "NVIDIA H100", 79.1), ("B200-180GB", "B200", 178.3)],
)
def test_stock_s_defaults_are_upstream_s(monkeypatch: pytest.MonkeyPatch, gpu: str, name: str, gib: float) -> None:
    asked = {"get_device_total_memory": int(gib * GIB), "get_device_name": name, "is_tpu": False, "is_cpu": False}
    platform = SimpleNamespace(**{each: lambda value=value: value for each, value in asked.items()})
    platform.is_device_capability = lambda _: False
    monkeypatch.setattr("vllm.engine.arg_utils.current_platform", platform)
    _, sequences = EngineArgs.get_batch_defaults(1)
    assert default_max_num_seqs(load()[gpu]) == sequences[UsageContext.OPENAI_API_SERVER]


def test_stages_have_the_layers_that_vllm_gives_them() -> None:
    for layers in (1, 7, 28, 32, 33, 80):
        for stages in range(1, layers + 1):
            theirs = [get_pp_indices(layers, stage, stages) for stage in range(stages)]
            assert stage_layers(layers, stages) == tuple(end - start for start, end in theirs)


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (LLAMA2_7B, Layout(16)),
        (LLAMA2_7B, Layout(8, 1, 3)),
        (MISTRAL_7B, Layout(8)),
        (MISTRAL_7B, Layout(16, 2)),
        (MISTRAL_7B, Layout(32, 4, 2)),
        (ONE_KV_HEAD, Layout(8, 8)),
        (PHI4_MINI, Layout(8)),
        (PHI4_MINI, Layout(2, 1, 3)),
        (QWEN2_5_7B, Layout(4, 1, 2)),
    ],
    ids="llama-tp16 llama-tp8pp3 mistral-tp8 mistral-tp16dcp2 mistral-tp32dcp4pp2 one-head phi phi-pp3 qwen".split(),
)
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_vllm_accepts_the_longest_sequence_of_the_plan_and_no_longer_one(
    tmp_path: Path, config: Config, layout: Layout, kv_dtype: torch.dtype
) -> None:
    config = config | {"max_position_embeddings": LONG, "sliding_window": None} | _window(config)
    config = {key: value for key, value in config.items() if key != "rope_scaling"}
    shape = shape_from_config("c", config)
    asked = Workload(LONG, kv_dtype.itemsize, 0.9, 3.0)
    held = memory(shape, layout, A100, asked)
    layers = stage_layers(shape.layers, layout.pipeline)
    available = [
        int(A100.memory_gib * GIB * 0.9)
        - 3 * GIB
        - stage_weights(shape, layout.tensor, layout.pipeline, stage).bytes(shape)
        for stage in range(layout.pipeline)
    ]
    model = model_config(tmp_path / "model", config, held.longest)
    made = kv_cache(model, layout, available, layers, kv_dtype)
    fitting = [
        memory(shape, layout, A100, replace(asked, max_model_len=n)).sequences
        for n in (held.longest, held.longest // 3)
    ]
    assert fitting == [1, concurrency(*made, held.longest // 3)]
    with pytest.raises(ValueError, match="estimated maximum model length is"):
        kv_cache(model_config(tmp_path / "model", config, held.longest + 1), layout, available, layers, kv_dtype)


def _window(config: Config) -> Config:
    """A window that is longer than any sequence here, where the config has one."""
    return {"sliding_window": LONG} if config.get("sliding_window") and "use_sliding_window" not in config else {}


@pytest.mark.parametrize("config", [*ALL.values(), BIASED], ids=[*ALL, "llama with biases"])
def test_the_plan_counts_the_parameters_that_transformers_counts(config: Config) -> None:
    # transformers writes into what it is given.
    fields = {key: deepcopy(value) for key, value in config.items() if key not in ("model_type", "torch_dtype")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **fields))
    assert parameter_count(shape_from_config("c", config)) == model.num_parameters()
