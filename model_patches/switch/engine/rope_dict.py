"""``vllm.model_executor.layers.rotary_embedding._ROPE_DICT``: replaced by a dict that makes ladder modules.

replaces: the cache of rotary modules that ``get_rope`` checks before it builds one.
why: models import ``get_rope`` by name, so rebinding it would miss models imported earlier, and the modules it builds size
    their tables by the longest position (up to 1 GiB). Every call looks in the cache before it builds anything.
what differs: while an engine with a ladder is being built, every key of the language model is present, with a module of
    ours, which reads the runner's rows (in a draft model, its own angles). Otherwise, and for encoders, it is upstream's.
limits: the ladder applies to one base; layers with another base must have plain rotary embeddings, and dual chunk attention
    is refused.
when it can go: when vLLM has a hook for building a model's rotary module.
"""

from typing import Any

from vllm.config import VllmConfig, get_current_vllm_config, get_current_vllm_config_or_none

from ropeswitch.model_patches.switch.config.settings import UnsupportedError, settings_of
from ropeswitch.model_patches.switch.drafts.draft_rotary import DraftRotaryEmbedding, a_draft_is_built, draft_rotary
from ropeswitch.model_patches.switch.models.unsupported import is_qwen4
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.rotation import Rotation, rotation_of

# get_rope's key: head_size, rotary_dim, max_position, is_neox_style, rope_parameters, dual chunk config, dtype, mrope.
RopeKey = tuple[Any, ...]


class LadderRopeDict(dict[RopeKey, Any]):
    """See the module docstring."""

    def __init__(self, upstream: dict[RopeKey, Any]) -> None:
        super().__init__(upstream)
        self._config: VllmConfig | None = None
        self._modules: dict[RopeKey, LadderRotaryEmbedding] = {}

    def clear(self) -> None:
        super().clear()
        self._config, self._modules = None, {}

    def __contains__(self, key: Any) -> bool:
        ours = _draft_module(key) if a_draft_is_built() else _rotation(key)
        return ours is not None or super().__contains__(key)

    def __getitem__(self, key: RopeKey) -> Any:
        if a_draft_is_built():
            return _draft_module(key) or super().__getitem__(key)
        if (rotation := _rotation(key)) is None:
            return super().__getitem__(key)
        # Layers of one model share a module, as in upstream; two engines in one process must not.
        config = get_current_vllm_config_or_none()
        if self._config is not config:
            self._config, self._modules = config, {}
        if key not in self._modules:
            head_size, _, _, neox, *_ = key
            self._modules[key] = LadderRotaryEmbedding(head_size, rotation, neox)
        return self._modules[key]


def _draft_module(key: RopeKey) -> DraftRotaryEmbedding | None:
    """Return a draft model's module, or None to use upstream's."""
    settings = settings_of(config := get_current_vllm_config())
    # The indexer of Qwen 4's drafts reads upstream's table.
    if settings is None or is_qwen4(config):
        return None
    return draft_rotary(key, settings, config.speculative_config.method)


def _rotation(key: RopeKey) -> Rotation | None:
    """Return the rotation for a key while an engine with a ladder is being built, or None to use upstream's module."""
    config = get_current_vllm_config_or_none()
    if config is None or (settings := settings_of(config)) is None:
        return None
    head_size, rotary_dim, _, _, rope_args, dual_chunk_args, _, _ = key
    if dual_chunk_args is not None:
        raise UnsupportedError("dual_chunk_attention_config: dual chunk attention remaps positions inside the layer")
    multimodal = config.model_config is not None and config.model_config.is_multimodal_model
    return rotation_of(head_size, rotary_dim, dict(rope_args or ()), settings, multimodal=multimodal)
