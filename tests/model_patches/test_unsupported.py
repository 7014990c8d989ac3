"""What cannot be rotated per request is refused, with the field, the value and the reason."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import DiffusionGemmaConfig
from vllm import EngineArgs
from vllm.config import KVTransferConfig

from ropeswitch.factors.factor_set import FactorError, FactorLadder, LayerFactors
from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.config.settings import SCHEDULER, WORKERS, RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.engine_args import configure, configure_from_key
from ropeswitch.model_patches.switch.models.unsupported import check_device, check_engine, check_features, check_model
from tests.model_patches.test_latent_attention import ladder as latent_ladder

LADDER = FactorLadder.checked([{"name": "all", "max_length": 64, "factors": [1.0] * 8}])
MODEL: dict[str, Any] = {"rope_theta": 10000.0, "hidden_size": 32, "num_attention_heads": 2}
# Latent attention.
LATENT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "rope_theta": 10000.0, "hidden_size": 128, "num_attention_heads": 4,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
ARGS = {
    "speculative_config": None, "kv_transfer_config": None,
    "hf_overrides": {}, "scheduler_cls": None, "worker_cls": "auto", "max_model_len": None, "additional_config": {},
}  # fmt: skip

# A config, its ladder, and the field that is refused, with as much of the reason as tells it from others.
MODELS: list[tuple[dict[str, Any], FactorLadder, str]] = [
    *((MODEL | change, LADDER, message) for change, message in (
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "xdrope"}}, "rope_parameters.rope_type: 'xdrope'"),
        ({"index_topk": 512}, "index_topk: 512"),
        ({"indexer_budget": 512}, "indexer_budget: 512"),
        ({"sparse_attention_config": {"sparse_topk_blocks": 16}}, "sparse_attention_config: "),
        ({"model_type": "mimo_v2_flash"}, "swa_rope_theta: 10000.0"),
        ({"layer_rope_theta": [1e4, 0, 5e5]}, r"layer_rope_theta: .*500000"),
        ({"swa_rope_theta": 1e4}, "swa_rope_theta: 10000.0"),
        ({"xdrope_section": [1, 2, 3, 2]}, "mrope_section"),
        ({"rope_parameters": {"rope_theta": 1e4, "mrope_section": [4, 2, 3]}}, r"mrope_section: \[4, 2, 3\]"),
        ({"dual_chunk_attention_config": {"chunk_size": 8}}, "dual_chunk_attention_config"),
        ({"rope_theta": float("inf")}, "rope_theta: inf"),
        ({"rope_theta": None}, "rope_theta: missing"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor: 1.5"),
        ({"rope_parameters": {"rope_theta": 1e4, "use_fope": True}}, "rope_parameters.use_fope"),
        ({"rope_parameters": {"rope_theta": 1e4, "fope_sep_head": True}}, "rope_parameters.fope_sep_head"),
        ({"head_dim": 64}, "8 factors, .* needs 32"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1}, "chunked_attention": {"rope_theta": 2}}},
         "sliding_attention, chunked_attention"),
    )),
    (MODEL | {"num_hidden_layers": 3}, FactorLadder((replace(LADDER.sets[0], layers=(LayerFactors((1.0,) * 8),) * 2),)),
     "sets.layers: 2 layers, but the model's num_hidden_layers is 3"),
    *((LATENT | change, sets, message) for change, sets, message in (
        ({"index_topk": 2048}, latent_ladder(), "index_topk: 2048"),
        ({"rope_interleave": False}, latent_ladder(), "rope_interleave: false"),
        ({"llama_4_scaling": {"beta": 0.1}}, latent_ladder(), "llama_4_scaling: "),
        # The head's values that do not rotate need no factors.
        ({}, latent_ladder(16), "16 factors, but the model rotates 64 .* needs 32"),
        ({"rope_scaling": YARN}, latent_ladder(), r"sets\[0\].softmax_scale: missing"),
        ({"rope_scaling": YARN}, latent_ladder(32, 1.3, None), r"sets\[1\].softmax_scale: missing"),
        ({"kv_lora_rank": None}, latent_ladder(32, 1.3), r"sets\[0\].softmax_scale: 1.3"),
        # YaRN parameters that do not have one meaning.
        *(({"rope_scaling": YARN | change}, latent_ladder(32, 1.3), f"rope_scaling.{field}: 1.0") for change, field in (
            ({"mscale": None}, "mscale_all_dim"), ({"mscale_all_dim": 0}, "mscale"),
            ({"attention_factor": 1.0}, "attention_factor"), ({"rope_type": "linear"}, "mscale_all_dim"),
        )),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("model", "sets", "message"), MODELS, ids=[message for *_, message in MODELS])
def test_a_model_that_no_ladder_rotates(model: dict[str, Any], sets: FactorLadder, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_model(model, sets)


def test_models_that_ladders_rotate() -> None:
    assert check_model(MODEL, LADDER) == 10000.0
    for architectures in (["DeepseekV3ForCausalLM"], ["NewForCausalLM"], None):
        assert check_model(LATENT | {"architectures": architectures}, latent_ladder()) == 10000.0
    check_model(LATENT | {"rope_scaling": YARN}, latent_ladder(32, 1.3, 1.0))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"speculative_config": {"method": "extract_hidden_states"}}, "speculative_config.method"),
        ({"speculative_config": {"method": "eagle", "model": "x", "rejection_sample_method": "synthetic"}},
         "speculative_config.rejection_sample_method"),
        ({"kv_transfer_config": KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")}, "ExampleConnector'"),
        ({"hf_overrides": "["}, "hf_overrides"),
        ({"speculative_config": 3}, "speculative_config"),
        ({"additional_config": 3}, "additional_config"),
    ],
)  # fmt: skip
def test_features(change: dict[str, Any], field: str) -> None:
    for drafts in (None, {"method": "ngram"}, {"model": "draft"}, {"method": "eagle", "model": "x"}):
        check_features(SimpleNamespace(**(ARGS | {"speculative_config": drafts})))
    with pytest.raises(UnsupportedError, match=f"{field}: "):
        check_features(SimpleNamespace(**(ARGS | change)))


def test_a_front_end_that_places_no_request_and_a_device_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(UnsupportedError, match="VLLM_USE_RUST_FRONTEND: "):
        check_features(SimpleNamespace(**ARGS))
    check_device("cpu")
    check_device("cuda")
    with pytest.raises(UnsupportedError, match=r"device: 'xpu': .* allowed: cpu, cuda"):
        check_device("xpu")


def engine(**changes: Any) -> SimpleNamespace:
    """A resolved engine config; a change is named by its dotted path with ``__`` for the dots."""
    parallel = {
        "decode_context_parallel_size": 1, "prefill_context_parallel_size": 1, "enable_elastic_ep": False,
        "use_ubatching": False, "cp_kv_cache_interleave_size": 16,
    }  # fmt: skip
    model = {
        "use_mla": False, "using_transformers_backend": lambda: False, "is_multimodal_model": False,
        "is_encoder_decoder": False, "architectures": ["Some"], "hf_text_config": SimpleNamespace(),
    }  # fmt: skip
    cache = {"sliding_window": None, "cache_dtype": "auto", "block_size": 16, "enable_prefix_caching": False}
    config = SimpleNamespace(
        additional_config={KEY: RopeSettings(LADDER, 1e4).to_json()}, speculative_config=None, kv_transfer_config=None,
        use_v2_model_runner=False, scheduler_config=SimpleNamespace(async_scheduling=False),
        device_config=SimpleNamespace(device_type="cpu"), parallel_config=SimpleNamespace(**parallel),
        model_config=SimpleNamespace(**model), cache_config=SimpleNamespace(**cache),
    )  # fmt: skip
    for path, value in changes.items():
        *owners, name = path.split("__")
        owner = config
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, value)
    return config


SPLIT = {"parallel_config__decode_context_parallel_size": 2}
DEEPSEEK = {"model_config__use_mla": True, "model_config__architectures": ["DeepseekV3ForCausalLM"]}
QWEN4 = {"model_config__architectures": ["Qwen4ExpForConditionalGeneration"]}
QWEN4 |= {"model_config__multimodal_config": SimpleNamespace(language_model_only=True)}
SYNTHETIC = SimpleNamespace(method="eagle3", rejection_sample_method="synthetic")
LOSSY = SimpleNamespace(method="eagle3", rejection_sample_method="fly")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"additional_config": {}}, "additional_config: "),
        ({"speculative_config": SYNTHETIC}, "speculative_config.rejection_sample_method: 'synthetic'"),
        ({"speculative_config": LOSSY}, "speculative_config.rejection_sample_method: 'fly'"),
        (SPLIT | {"cache_config__sliding_window": 48}, "decode_context_parallel_size: 2: .* window of 48"),
        ({"parallel_config__prefill_context_parallel_size": 4}, "prefill_context_parallel_size: 4"),
        ({"parallel_config__enable_elastic_ep": True}, "enable_elastic_ep"),
        ({"parallel_config__use_ubatching": True}, "enable_dbo, ubatch_size: "),
        (DEEPSEEK | {"model_config__using_transformers_backend": lambda: True}, "model_impl: 'transformers'"),
        ({"model_config__is_encoder_decoder": True}, "encoder"),
        ({"kv_transfer_config": KVTransferConfig()}, "kv_transfer_config.kv_connector: None"),
        (
            QWEN4 | {"model_config__multimodal_config": SimpleNamespace(language_model_only=False)},
            "language_model_only: F",
        ),
    ],
)
def test_resolved_engines(change: dict[str, Any], message: str) -> None:
    for allowed in ({}, SPLIT, DEEPSEEK, QWEN4):
        check_engine(engine(**allowed))
    with pytest.raises(UnsupportedError, match=message):
        check_engine(engine(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache_config__cache_dtype": "fp8"}, "kv_cache_dtype: 'fp8'"),
        ({"model_config__use_mla": True}, "decode_context_parallel_size: 2: .*latent attention"),
        ({"parallel_config__cp_kv_cache_interleave_size": 3}, "cp_kv_cache_interleave_size: 3"),
        ({"parallel_config__cp_kv_cache_interleave_size": 0}, "cp_kv_cache_interleave_size: 0"),
    ],
)
def test_sequences_split_over_ranks_on_cpus(change: dict[str, Any], message: str) -> None:
    """The part ``cpu`` checks what its own attention needs, in every process of the engine."""
    parts.call("prepare", ["cpu"], engine(**SPLIT))
    with pytest.raises(UnsupportedError, match=message):
        parts.call("prepare", ["cpu"], engine(**SPLIT | change))


def test_mamba_2_on_cpus() -> None:
    """Stock vLLM starts, and dies with an IndexError at the first request."""

    def prepare(hybrid: bool = True, caching: bool = True, **layers: int) -> None:
        config = engine(
            cache_config__enable_prefix_caching=caching, model_config__hf_text_config=SimpleNamespace(**layers)
        )
        config.model_config.is_hybrid = hybrid
        parts.call("prepare", ["cpu"], config)

    prepare()
    with pytest.raises(UnsupportedError, match="enable_prefix_caching: True: "):
        prepare(mamba_n_heads=4)
    # Cosmos3-Edge has Nemotron-H's config, without its Mamba-2 layers.
    prepare(hybrid=False, mamba_n_heads=4)
    prepare(caching=False, mamba_n_heads=4)


def test_the_host_tier_on_cpus() -> None:
    """Stock vLLM fails once the model is loaded; `kv_offloading_size` names the same connector."""
    tier = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both")
    with pytest.raises(UnsupportedError, match=r"spec_name: 'CPUOffloadingSpec': .* does not run on CPUs"):
        parts.call("prepare", ["cpu"], engine(kv_transfer_config=tier))


def test_configure_keeps_what_the_user_set() -> None:
    args = SimpleNamespace(**(ARGS | {"hf_overrides": {"a": 1}, "additional_config": {"b": 2}, "max_model_len": 32}))
    configure(args, RopeSettings(LADDER, 1e4), MODEL | {"partial_rotary_factor": 0.5}, device_name="cpu")
    plain = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "ropeswitch": "ladder"}
    assert args.hf_overrides == {"a": 1, "rope_parameters": plain, "max_position_embeddings": 64}
    assert args.additional_config["b"] == 2 and args.max_model_len == 32
    assert args.worker_cls == "ropeswitch.model_patches.cpu.cpu_worker.CPUPartWorker"
    configure(args, RopeSettings(LADDER, 1e4, parts=()), MODEL, device_name="cpu")
    assert (args.scheduler_cls, args.worker_cls) == (SCHEDULER, WORKERS["cpu"])
    configure(args, RopeSettings(LADDER, 1e4, length_aware=False), MODEL, device_name="cpu")
    assert args.scheduler_cls == SCHEDULER
    for field in ("scheduler_cls", "worker_cls"):
        args = SimpleNamespace(**(ARGS | {field: "mine.Own"}))
        with pytest.raises(UnsupportedError, match=f"{field}: 'mine.Own'"):
            configure(args, RopeSettings(LADDER, 1e4), MODEL, device_name="cpu")


@pytest.mark.parametrize(("asked", "served"), [(None, 64), (-1, -1), (30, 30), (65, None)])
def test_the_ladders_end_limits_the_model(asked: int | None, served: int | None) -> None:
    args = SimpleNamespace(**(ARGS | {"max_model_len": asked}))
    with pytest.raises(FactorError, match="--max-model-len: 65") if served is None else nullcontext():
        configure(args, RopeSettings(LADDER, 1e4), MODEL, device_name="cpu")
        assert args.max_model_len == served


@pytest.mark.parametrize("v2", ["0", "1"])
def test_a_diffusion_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, v2: str) -> None:
    """By its config alone, before vLLM refuses it on the V1 runner or loads it on the V2 runner."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", v2)
    DiffusionGemmaConfig(architectures=["DiffusionGemmaForBlockDiffusion"]).save_pretrained(tmp_path)
    args = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, additional_config={KEY: {"ladder": "auto"}})
    with pytest.raises(UnsupportedError, match=r"canvas_length: 256: .* keeps a state that no ladder reaches"):
        configure_from_key(args)
