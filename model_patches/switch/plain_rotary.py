"""Replaces the plain rotary modules of decoders that ``get_rope`` took for parts of an encoder.

A decoder in a multimodal model may write its layers' rope parameters itself (GLM-4V, Moondream, MiMo-V2 Omni). They lack the
config's mark then, as those of encoders do, and only once the model is built is it clear whose they are.
"""

from torch import nn
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from ropeswitch.model_patches.switch.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rotation import rotation_of
from ropeswitch.model_patches.switch.settings import RopeSettings


def replace_plain_rotary(text: nn.Module, settings: RopeSettings) -> None:
    """Put ladder modules in the places of ``text``'s modules that rotate without any scaling.

    Args:
        text: The decoder, apart from encoders.
        settings: The engine's; a module of the ladder's base gets the ladder, any other its own base.

    Raises:
        UnsupportedError: for a number of factors that is not the layer's.
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
