"""``vllm.model_executor.layers.rotary_embedding._ROPE_DICT``: replaced by a dict that makes ladder modules.

replaces: the cache of rotary modules that ``get_rope`` looks in before it builds one.
why: models import ``get_rope`` by name, so rebinding it would miss those imported earlier, and the modules it builds size
    their tables by the longest position (up to 1 GiB); the cache is looked up at every call, before anything is built.
what differs: while an engine with a ladder is being built, every key is present, and its value is a
    ``LadderRotaryEmbedding`` that the runner gives its rows; otherwise the dict behaves as upstream's.
limits: one rotary dimension, base and pairing rule per model; M-RoPE and dual chunk attention are refused.
when it can go: when vLLM has a hook that builds a model's rotary module.
"""

from typing import Any

from vllm.config import VllmConfig, get_current_vllm_config_or_none

from ropeswitch.model_patches.switch.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.settings import RopeSettings, UnsupportedError, settings_of

# get_rope's key: head_size, rotary_dim, max_position, is_neox_style, rope_parameters, dual chunk config, dtype, mrope.
RopeKey = tuple[Any, ...]


class LadderRopeDict(dict[RopeKey, Any]):
    """See the module's docstring."""

    def __init__(self, upstream: dict[RopeKey, Any]) -> None:
        super().__init__(upstream)
        self._config: VllmConfig | None = None
        self._modules: dict[RopeKey, LadderRotaryEmbedding] = {}

    def clear(self) -> None:
        super().clear()
        self._config, self._modules = None, {}

    def __contains__(self, key: object) -> bool:
        return _current_settings() is not None or super().__contains__(key)

    def __getitem__(self, key: RopeKey) -> Any:
        settings = _current_settings()
        if settings is None:
            return super().__getitem__(key)
        # Layers of one model share a module, as upstream's do; two engines in one process must not.
        config = get_current_vllm_config_or_none()
        if self._config is not config:
            self._config, self._modules = config, {}
        if key not in self._modules:
            self._modules[key] = _build(key, settings)
        return self._modules[key]


def _current_settings() -> RopeSettings | None:
    config = get_current_vllm_config_or_none()
    return None if config is None else settings_of(config)


def _build(key: RopeKey, settings: RopeSettings) -> LadderRotaryEmbedding:
    head_size, rotary_dim, _, neox, rope_args, dual_chunk_args, _, _ = key
    rope = dict(rope_args or ())
    if dual_chunk_args is not None or "mrope_section" in rope:
        raise UnsupportedError("the model uses M-RoPE or dual chunk attention, which a factor ladder cannot rotate")
    if rope.get("rope_type", "default") != "default" or rope.get("rope_theta", 10000) != settings.theta:
        raise UnsupportedError(
            f"rope_parameters: a layer asks for rope_type {rope.get('rope_type')!r} with rope_theta "
            f"{rope.get('rope_theta')!r}, but the ladder was made for one base of {settings.theta}; models with several "
            "rotary bases are not supported"
        )
    if rotary_dim != settings.ladder.rotary_dim:
        raise UnsupportedError(
            f"factors: each set has {settings.ladder.rotary_dim // 2} factors, but a layer rotates {rotary_dim} values "
            f"per head and needs {rotary_dim // 2}"
        )
    return LadderRotaryEmbedding(head_size, rotary_dim, neox)
