"""Attention layers that read a rotary module's table of angles, ``cos_sin_cache``, in fused kernels.

The rows of a step are that table where a kernel indexes it by exactly the positions that the model was given, which are row
numbers. A kernel that derives positions (the first one of a compressed group, those of sequence lengths) would read another
token's row; so only layers whose code was read are listed, with fingerprints, and every other read is refused.
"""

from torch import nn

from ropeswitch.model_patches.switch.rows.position_readers import names_of
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding

# DeepSeek V3.2's sparse attention, which is GLM's too.
LAYERS = {"vllm.models.deepseek_v32.attention.DeepseekV32Attention"}


def readers(model: nn.Module) -> list[nn.Module]:
    """Return a model's layers of :data:`LAYERS`."""
    return [module for module in model.modules() if names_of(module) & LAYERS]


def give_tables(model: nn.Module) -> None:
    """Let the listed layers of ``model`` read the rows of their rotary modules, float32 ``[tokens, rotary_dim]``."""
    for layer in readers(model):
        for module in layer.children():
            if isinstance(module, LadderRotaryEmbedding):
                module.is_table = True
