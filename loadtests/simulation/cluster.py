"""The simulated hardware: a model's published shape, the GPUs of one replica, and the KV blocks that the planner finds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeswitch.deploy.plan.costs import BLOCK_SIZE, Workload, memory
from ropeswitch.deploy.plan.gpus import Gpu
from ropeswitch.deploy.plan.layouts import Layout, broken_rule
from ropeswitch.deploy.plan.model_shape import ModelShape, shape_from_config
from ropeswitch.factors.errors import UsageError

# The end of the factor ladder that is simulated: 2,048k tokens.
MAX_MODEL_LEN = 2_097_152
# Of which the longest prompt leaves room for an answer.
LONGEST_PROMPT = MAX_MODEL_LEN - 512
# Bytes of one stored key or value, and what the planner takes by default.
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
    # Extended to the ladder's end, as the fine-tuned LongRoPE models are.
    "max_position_embeddings": MAX_MODEL_LEN,
}
# The published configs, cut to the fields that size a model.
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
    """One replica: tensor parallel over all its GPUs, which are taken to share one NVLink domain.

    Attributes:
        model: A key of :data:`MODELS`.
        shape: Its sizes.
        gpu: The kind of GPU.
        gpus: How many, which is the tensor-parallel size.
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
        """KV blocks of 16 tokens, as vLLM counts them: the null block, which no request gets, is one of them."""
        load = Workload(MAX_MODEL_LEN, KV_BYTES, MEMORY_UTILIZATION, RESERVE_GIB)
        held = memory(self.shape, self.layout, self.gpu, load)
        return held.kv_available // round(BLOCK_SIZE * held.kv_per_token)

    @property
    def kv_tokens(self) -> int:
        """Tokens that all requests together can have cached."""
        return max(0, self.kv_blocks - 1) * BLOCK_SIZE


def make_cluster(model: str, gpu: Gpu, gpus: int) -> Cluster:
    """The cluster, checked.

    Args:
        model: A key of :data:`MODELS`.
        gpu: The kind of GPU.
        gpus: How many of them.

    Raises:
        UsageError: for an unknown model, a tensor-parallel size that breaks a rule of vLLM, or weights that do not fit.
    """
    if model not in MODELS:
        raise UsageError(f"--model: {model!r} is not known; allowed are {', '.join(MODELS)}")
    shape = shape_from_config(model, MODELS[model])
    if (rule := broken_rule(shape, Layout(gpus))) is not None:
        raise UsageError(f"--gpus: {gpus}: {rule}")
    cluster = Cluster(model, shape, gpu, gpus)
    if cluster.kv_tokens == 0:
        raise UsageError(f"--gpus: {gpus} x {gpu.name} have no memory left for keys and values beside the weights")
    return cluster
