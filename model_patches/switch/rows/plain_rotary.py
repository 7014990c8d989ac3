"""Replaces plain rotary modules of a decoder that ``get_rope`` mistook for an encoder's.

The decoder of a multimodal model may set its layers' rope parameters itself (GLM-4V, Moondream, MiMo-V2 Omni). These then
lack the config's mark, as encoders' layers do, and only the built model tells the two apart.
"""

from torch import nn
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import rotation_of


def replace_plain_rotary(text: nn.Module, settings: RopeSettings) -> None:
    """Replace ``text``'s unscaled rotary modules with ladder modules.

    Args:
        text: The decoder, without encoders.
        settings: The engine's settings. A module with the ladder's base follows the ladder; any other keeps its own base.

    Raises:
        UnsupportedError: when the number of factors does not match a layer.
    """
    ours: dict[RotaryEmbedding, LadderRotaryEmbedding] = {}
    for parent in list(text.modules()):
        for name, module in parent.named_children():
            if type(module) is not RotaryEmbedding:
                continue
            if module not in ours:
                plain = {"rope_theta": module.base}
                rotation = rotation_of(module.head_size, module.rotary_dim, plain, settings, multimodal=False)
                assert rotation is not None
                ours[module] = LadderRotaryEmbedding(module.head_size, rotation, module.is_neox_style)
            setattr(parent, name, ours[module])
