"""The recipes of recipes.yaml, and the architectures that there are recipes for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Recipe:
    """What is not automatic about one architecture.

    Attributes:
        family: The class of transformers; None if it has the architecture's name.
        config: Fields of its config, which replace the automatic ones; a mapping goes into a nested config.
        engine: Engine arguments, for stock vLLM and with a ladder.
        trained: YaRN's parameters in the config, if the model was trained with it; ``rope_type`` linear if positions are
            interpolated instead.
        ladder: As of ``--ladder``, or a mapping as in ``additional_config["ropeswitch"]``.
        fields: Fields of the config, if transformers has no class for the architecture; its weights are made in vLLM.
        tokens: Names that vLLM's code looks up in the tokenizer, by the tokenizer's attributes or in order; None for no
            tokenizer.
        replaced: The modules of :mod:`tests.matrix.kernels` that compute in torch what vLLM has no float32 CPU kernel for.
        missing: Why no checkpoint can be made.
        processor: Content of ``preprocessor_config.json``, if vLLM reads it even for text alone.
        forced: The rotary base of the layers that a ladder scales, if stock vLLM has no YaRN for them: the reference is
            then a stock engine with each set's frequencies in these layers' tables.
    """

    family: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    trained: Mapping[str, Any] = field(default_factory=dict)
    ladder: str | Mapping[str, Any] = "auto"
    fields: Mapping[str, Any] | None = None
    tokens: Sequence[str] | Mapping[str, str] | None = None
    replaced: Sequence[str] = ()
    missing: str = ""
    processor: Mapping[str, Any] | None = None
    forced: float | None = None


DATA = yaml.safe_load(Path(__file__).with_name("recipes.yaml").read_text(encoding="utf-8"))
RECIPES = {name: Recipe(**fields) for name, fields in DATA["recipes"].items()}
# Architectures that generate text without rotary embeddings, and what they have instead.
WITHOUT_ROTATION: dict[str, str] = DATA["without_rotation"]
KINDS = TEXT, WRAPPED, BACKEND = "text", "multimodal", "Transformers backend"


def architectures() -> dict[str, str]:
    """Every architecture of vLLM's registry that generates text, with its kind."""
    from vllm.model_executor.models import registry

    backend = {
        name: BACKEND
        for name in (*registry._TRANSFORMERS_SUPPORTED_MODELS, *registry._TRANSFORMERS_BACKEND_MODELS)
        if not name.endswith(("Classification", "EmbeddingModel", "ForMTP"))
    }
    text = dict.fromkeys(registry._TEXT_GENERATION_MODELS, TEXT)
    return text | dict.fromkeys(registry._MULTIMODAL_MODELS, WRAPPED) | backend


def rotating() -> dict[str, str]:
    """Those of :func:`architectures` that have rotary embeddings."""
    return {name: kind for name, kind in architectures().items() if name not in WITHOUT_ROTATION}
