"""``vllm.models.deepseek_v32.attention.DeepseekV32Attention``: unchanged; may read the step's rows as a table of angles.

replaces: nothing.
why: its fused kernels, the indexer's included, read ``cos_sin_cache`` by exactly the positions that the model was given,
    which are row numbers, so that the rows are that table.
what differs: every other read of ``cos_sin_cache`` is refused. A kernel that derives positions (the first of a compressed
    group, those of sequence lengths) would read another token's row.
limits: layers whose code was read, by class, with fingerprints.
when it can go: when the runner no longer passes row numbers to the model.
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
