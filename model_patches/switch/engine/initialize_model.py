"""``vllm.model_executor.model_loader.base_loader.initialize_model``: wrapped to check a model before its weights load.

replaces: the function that builds a model, as called by most loaders.
why: a model that reads positions outside its rotary modules, or attends to prompts bidirectionally, must be refused before
    its weights are read, which may take minutes.
what differs: the built model is bound to rows of a few tokens and run once on marked row numbers (``row_numbers.py``). A
    draft model is built with its own rotary modules (``draft_rotary.py``), and only its angle tables' lengths are checked.
limits: loaders with their own ``load_model``, such as Tensorizer's, do not call it; they are refused.
when it can go: when the runner no longer passes row numbers to the model.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import PrefillPrefixLMAttention
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, BaseModelLoader

from ropeswitch.model_patches.switch.config.settings import UnsupportedError, settings_of
from ropeswitch.model_patches.switch.drafts.draft_rotary import building_a_draft
from ropeswitch.model_patches.switch.drafts.draft_sets import check_tables
from ropeswitch.model_patches.switch.engine.gpu_model_state import give_state
from ropeswitch.model_patches.switch.rows.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rows.row_numbers import TOKENS, check_positions
from ropeswitch.model_patches.switch.rows.step_rows import StepRows, check_axes
from ropeswitch.model_patches.switch.rows.transformers_rotary import RowsRotaryEmbedding

TARGET = "vllm.model_executor.model_loader.base_loader.initialize_model"


def checking(upstream: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Wrap ``initialize_model``, to raise UnsupportedError for a model that a ladder cannot rotate."""

    def initialize_model(vllm_config: VllmConfig, **arguments: Any) -> nn.Module:
        settings = settings_of(vllm_config)
        if settings is None:
            return upstream(vllm_config, **arguments)
        model_config = arguments.get("model_config") or vllm_config.model_config
        if model_config.runner_type == "draft":
            return _build_draft(upstream, vllm_config, arguments)
        try:
            model = upstream(vllm_config, **arguments)
            check_axes(model, vllm_config.model_config)
            _check_causal(model)
            # On the V1 runner too, whose models need the same kind of state.
            give_state(model, vllm_config)
            # While loading, torch's default device is the model's.
            # Without parts: a Triton launch would read the row numbers out of our modules' sight.
            rows = StepRows(replace(settings, parts=()), TOKENS, TOKENS, torch.get_default_device())
            rows.bind(model)
            # Before `require_rotation`, because this names a module that does its own rotation.
            check_positions(model, vllm_config, rows.numbers)
            rows.require_rotation()
        except AttributeError as error:
            if isinstance(error.obj, LadderRotaryEmbedding | RowsRotaryEmbedding):
                raise UnsupportedError(
                    f"model: reads {error.name} of a rotary module by itself, which a ladder's does not have"
                ) from error
            raise
        model.positions_checked = True
        return model

    return initialize_model


def _build_draft(upstream: Callable[..., nn.Module], vllm_config: VllmConfig, arguments: dict[str, Any]) -> nn.Module:
    """Build a draft model; check only that its angle tables are long enough, since wrong drafts are rejected."""
    with building_a_draft():
        model = upstream(vllm_config, **arguments)
    # The V1 runner stops drafting where the tables end; the V2 runner drafts at every position.
    if vllm_config.use_v2_model_runner:
        check_tables(model, vllm_config.speculative_config.target_model_config.max_model_len)
    return model


def _check_causal(model: nn.Module) -> None:
    """Refuse a model in which prompt tokens attend to later ones."""
    for module in model.modules():
        if isinstance(module, PrefillPrefixLMAttention):
            raise UnsupportedError(
                f"model: {type(module).__name__} attends to prompts both ways; a switch to the next set would compute "
                "generated tokens anew as a part of the prompt"
            )


def check_loader(load_format: str) -> None:
    """Refuse a loader that does not build models with ``initialize_model``, before it reads weights."""
    if _LOAD_FORMAT_TO_MODEL_LOADER.get(load_format, BaseModelLoader).load_model is not BaseModelLoader.load_model:
        raise _unchecked(load_format)


def require_checked(model: nn.Module, load_format: str) -> None:
    """Refuse a loaded model that was not built with ``initialize_model``."""
    if not getattr(model, "positions_checked", False):
        raise _unchecked(load_format)


def _unchecked(load_format: str) -> UnsupportedError:
    return UnsupportedError(
        f"load_format: {load_format!r} builds models where what reads positions in them is not checked; use another one"
    )
