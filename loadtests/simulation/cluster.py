"""The simulated hardware: a model's published shape, the GPUs of one replica, and the KV blocks the planner computes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeswitch.deploy.plan.costs import BLOCK_SIZE, Workload, memory
from ropeswitch.deploy.plan.gpus import Gpu
from ropeswitch.deploy.plan.layouts import Layout, broken_rule
from ropeswitch.deploy.plan.model_shape import ModelShape, shape_from_config
from ropeswitch.factors.errors import UsageError

# End of the simulated factor ladder: 2,048k tokens.
MAX_MODEL_LEN = 2_097_152
# Leaves room for an answer.
LONGEST_PROMPT = MAX_MODEL_LEN - 512
# Bytes of one stored key or value, and the planner's defaults.
KV_BYTES, MEMORY_UTILIZATION, RESERVE_GIB = 2, 0.9, 3.0

_COMMON: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    # Extended to the ladder's end, as in the fine-tuned LongRoPE models.
    "max_position_embeddings": MAX_MODEL_LEN,
}
# The published configs, reduced to the fields that determine a model's size.
MODELS: Mapping[str, dict[str, Any]] = {
    "mistral-7b": _COMMON
    | {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "sliding_window": None,
    },
    "llama2-7b": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": 11008,
        "num_key_value_heads": 32,
    },
}


@dataclass(frozen=True)
class Cluster:
    """One replica: tensor parallel over all its GPUs, which are assumed to share one NVLink domain.

    Attributes:
        model: A key of :data:`MODELS`.
        shape: The model's sizes.
        gpu: Kind of GPU.
        gpus: Number of GPUs, which is the tensor-parallel size.
    """

    model: str
    shape: ModelShape
    gpu: Gpu
    gpus: int

    @property
    def layout(self) -> Layout:
        return Layout(self.gpus)

    @property
    def kv_blocks(self) -> int:
        """Number of KV blocks of 16 tokens as vLLM counts them, including the null block, which no request gets."""
        load = Workload(MAX_MODEL_LEN, KV_BYTES, MEMORY_UTILIZATION, RESERVE_GIB)
        held = memory(self.shape, self.layout, self.gpu, load)
        return held.kv_available // round(BLOCK_SIZE * held.kv_per_token)

    @property
    def kv_tokens(self) -> int:
        """Maximum cached tokens of all requests together."""
        return max(0, self.kv_blocks - 1) * BLOCK_SIZE


def make_cluster(model: str, gpu: Gpu, gpus: int) -> Cluster:
    """Check and return a cluster.

    Args:
        model: A key of :data:`MODELS`.
        gpu: Kind of GPU.
        gpus: Number of GPUs.

    Raises:
        UsageError: for an unknown model, a tensor-parallel size that breaks a rule of vLLM, or weights that do not fit.
    """
    if model not in MODELS:
        raise UsageError(f"--model: {model!r} is unknown; allowed: {', '.join(MODELS)}")
    shape = shape_from_config(model, MODELS[model])
    if (rule := broken_rule(shape, Layout(gpus))) is not None:
        raise UsageError(f"--gpus: {gpus}: {rule}")
    cluster = Cluster(model, shape, gpu, gpus)
    if cluster.kv_tokens == 0:
        raise UsageError(f"--gpus: {gpus} x {gpu.name} leave no memory for KV cache after the weights; use more GPUs")
    return cluster
