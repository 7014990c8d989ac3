"""Runs a Hugging Face causal language model locally, rotated with given factor sets.

Angles are exact at every length, as on the server (`ropeswitch.kernels.angles`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.hf_config import ladder_from_config, rope_parameters
from ropeswitch.factors.ladders.softmax import softmax_slope
from ropeswitch.factors.places import check_places
from ropeswitch.factors.rules.rope import Rope, rope_from_config
from ropeswitch.kernels.angles import inverse_frequencies

# Tokens whose logits are in memory at once.
LOGIT_CHUNK = 8192
# Positions whose float64 angles are in memory at once.
POSITION_CHUNK = 1 << 16


@dataclass(frozen=True)
class LocalModel:
    """A model in evaluation mode, its tokenizer, rotary embedding before any extension, and ladder of its config or None."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    rope: Rope
    ladder: FactorLadder | None

    @classmethod
    def load(cls, name: str | Path, dtype: str = "float32", device: str | None = None) -> "LocalModel":
        """Load a model from a folder or the Hugging Face Hub, onto a GPU if there is one; FactorError if unsupported."""
        try:
            written, _ = PretrainedConfig.get_config_dict(name)
            check_places(written)
            config = AutoConfig.from_pretrained(name)
            model, loaded = AutoModelForCausalLM.from_pretrained(
                name, dtype=getattr(torch, dtype), output_loading_info=True
            )
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise FactorError(f"model {str(name)!r}: cannot be opened: {str(error).splitlines()[0]}") from error
        # transformers would initialize these with random numbers.
        if absent := sorted(map(str, [*loaded["missing_keys"], *loaded["mismatched_keys"]])):
            raise FactorError(
                f"model {str(name)!r}: weights are missing or have the wrong shape: {', '.join(absent[:3])}"
            )
        model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
        return cls.of(model, tokenizer, config.to_dict(), str(name))

    @classmethod
    def of(cls, model: Any, tokenizer: Any, config: dict[str, Any], name: str) -> "LocalModel":
        """Wrap a model that is already loaded; errors as in :meth:`load`."""
        base = model.base_model
        if not hasattr(base, "rotary_emb"):
            raise FactorError(f"model {name!r}: {type(model).__name__} has no rotary embedding; factors need one")
        rope = rope_parameters(config)
        inv_freq = getattr(base.rotary_emb, "inv_freq", None)
        if inv_freq is None or rope.get("rope_theta") is None:
            raise FactorError(f"model {name!r}: the rotary embedding of {type(model).__name__} is unsupported")
        if softmax_slope(config) is not None:
            raise FactorError(
                f"model {name!r}: rope_scaling.mscale_all_dim: {rope['mscale_all_dim']!r} scales the softmax for the "
                "config's own length, which no factor set can change here; the model is unsupported"
            )
        positions = torch.tensor([[1, 5]])
        made = base.rotary_emb(torch.zeros(1, device=model.device), positions.to(model.device))
        if not isinstance(made, tuple):
            raise FactorError(f"model {name!r}: the rotary embedding of {type(model).__name__} is unsupported")
        cos, _ = made
        if cos.shape[-1] != 2 * len(inv_freq) or not torch.equal(cos[..., : len(inv_freq)], cos[..., len(inv_freq) :]):
            raise FactorError(
                f"model {name!r}: {type(model).__name__} interleaves its rotary pairs, which is unsupported"
            )
        try:
            own = rope_from_config(config, rotary_dim=2 * len(inv_freq))
            self = cls(model, tokenizer, own, ladder_from_config(config))
        except FactorError as error:
            raise FactorError(f"model {name!r}: {error}") from error
        self._check_head(name)
        return self

    def _check_head(self, name: str) -> None:
        """Refuse a model that scales its logits: losses are computed from hidden states and the output head alone."""
        ids = torch.arange(4, device=self.model.device)[None]
        with torch.no_grad():
            hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            ours = self.model.get_output_embeddings()(hidden)
            theirs = self.model(ids, use_cache=False).logits
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise FactorError(f"model {name!r}: {type(self.model).__name__} scales its logits, which is unsupported")

    def plain_set(self, max_length: int, name: str = "plain") -> FactorSet:
        """Return the set that changes nothing: factor 1 for every pair."""
        return FactorSet(name, max_length, (1.0,) * self.rope.pairs)

    @torch.no_grad()
    def hidden(self, ids: torch.Tensor, factor_set: FactorSet) -> torch.Tensor:
        """Return last hidden states ``[rows, n, hidden]`` of int64 ids ``[rows, n]``."""
        self.check_set(factor_set)
        with rotated(self.model.base_model, SetRotary(self.rope.theta, factor_set)):
            return self.model.base_model(input_ids=ids.to(self.model.device), use_cache=False).last_hidden_state

    @torch.no_grad()
    def losses(self, ids: torch.Tensor, factor_set: FactorSet, first: int = 1) -> torch.Tensor:
        """Return the negative log-likelihoods in nats of tokens ``first`` to ``n - 1`` of int64 ids ``[rows, n]``.

        ``first`` is at least 1; earlier tokens are context only. The result is float32 ``[rows, n - first]``.
        """
        hidden = self.hidden(ids, factor_set)
        head = self.model.get_output_embeddings()
        found = torch.empty(len(ids), ids.shape[1] - first)
        for row in range(len(ids)):
            for start in range(first, ids.shape[1], LOGIT_CHUNK):
                end = min(start + LOGIT_CHUNK, ids.shape[1])
                logits = head(hidden[row, start - 1 : end - 1]).float()
                labels = ids[row, start:end].to(logits.device)
                found[row, start - first : end - first] = cross_entropy(logits, labels, reduction="none")
        return found

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, factor_set: FactorSet, new_tokens: int) -> torch.Tensor:
        """Decode int64 prompts ``[rows, n]`` greedily to int64 ``[rows, new_tokens]``, rotated with the given set.

        The KV cache is kept, so a row stays in the set at any length. End-of-sequence tokens do not stop generation.
        """
        self.check_set(factor_set)
        head, base = self.model.get_output_embeddings(), self.model.base_model
        out = torch.empty(len(ids), new_tokens, dtype=torch.int64)
        with rotated(base, SetRotary(self.rope.theta, factor_set)):
            state, cache = ids.to(self.model.device), None
            for step in range(new_tokens):
                made = base(input_ids=state, past_key_values=cache, use_cache=True)
                cache = made.past_key_values
                logits = head(made.last_hidden_state[:, -1]).float()
                if not logits.isfinite().all():
                    raise FactorError("model: logits are not finite with these factors and this dtype")
                state = logits.argmax(-1, keepdim=True)
                out[:, step : step + 1] = state
        return out

    def check_set(self, factor_set: FactorSet) -> None:
        """Refuse a set with another number of factors or layers, or with a softmax scale."""
        if len(factor_set.factors) != self.rope.pairs:
            raise FactorError(
                f"set {factor_set.name!r}: {len(factor_set.factors)} factors; the model has {self.rope.pairs} rotary pairs"
            )
        layers = len(getattr(self.model.base_model, "layers", ()))
        if factor_set.layers and len(factor_set.layers) != layers:
            raise FactorError(f"set {factor_set.name!r}: {len(factor_set.layers)} layers; the model has {layers}")
        if factor_set.softmax_scale not in (None, 1.0):
            raise FactorError(
                f"set {factor_set.name!r}: softmax_scale {factor_set.softmax_scale:g} is applied by the server only; leave "
                "it out"
            )


def cos_sin(theta: float, factor_set: FactorSet, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of one set at int64 positions ``[n]``, each float32 ``[n, pairs]``.

    Angles are computed in float64. Positions below ``start_tokens`` have factor 1; all have the set's scale
    (LongRoPE, arXiv:2402.13753, equation 3).
    """
    pairs = len(factor_set.factors)
    scaled = torch.from_numpy(inverse_frequencies(theta, 2 * pairs, factor_set.factors))
    unscaled = torch.from_numpy(inverse_frequencies(theta, 2 * pairs, (1.0,) * pairs))
    cos = torch.empty(len(positions), pairs, dtype=torch.float32)
    sin = torch.empty_like(cos)
    for first in range(0, len(positions), POSITION_CHUNK):
        part = positions[first : first + POSITION_CHUNK, None]
        angles = part.double() * torch.where(part < factor_set.start_tokens, unscaled, scaled)
        cos[first : first + POSITION_CHUNK] = angles.cos() * factor_set.scale
        sin[first : first + POSITION_CHUNK] = angles.sin() * factor_set.scale
    return cos, sin


CosSin = tuple[torch.Tensor, torch.Tensor]


class SetRotary(nn.Module):
    """Replaces a model's rotary embedding; ``layers`` is how many layers rotate differently, 1 if all rotate alike."""

    def __init__(self, theta: float, factor_set: FactorSet) -> None:
        super().__init__()
        self.theta, self.factor_set, self.layers = theta, factor_set, len(factor_set.layers) or 1

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> CosSin:
        """Return cos and sin of the first layer ``[1, n, 2 * pairs]`` with equal halves, in the dtype of ``x``.

        Every row has the positions of the first. ``made`` then has those of all layers.
        """
        of_layers = (self.tables(layer, position_ids[0]) for layer in range(self.layers))
        self.made = [
            (torch.cat((cos, cos), -1)[None].to(x), torch.cat((sin, sin), -1)[None].to(x)) for cos, sin in of_layers
        ]
        return self.made[0]

    def tables(self, layer: int, positions: torch.Tensor) -> CosSin:
        """Return cos and sin of a layer, ``[n, pairs]``, at int64 positions ``[n]``."""
        return cos_sin(self.theta, self.factor_set.of_layer(layer), positions.cpu())


@contextmanager
def rotated(base_model: Any, rotary: SetRotary) -> Iterator[None]:
    """Rotate ``base_model``, which owns ``rotary_emb`` and, for sets by layer, ``layers``, by ``rotary`` inside the block.

    FactorError for a set by layer where the layers are not given cos and sin.
    """
    own, base_model.rotary_emb = base_model.rotary_emb, rotary

    def giving(layer: int) -> Callable[..., Any]:
        def give(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            if "position_embeddings" not in kwargs:
                raise FactorError(
                    f"layers: {type(module).__name__} gets no cos and sin, so layers cannot rotate differently"
                )
            return args, kwargs | {"position_embeddings": rotary.made[layer]}

        return give

    layers = base_model.layers if rotary.layers > 1 else ()
    hooks = [layer.register_forward_pre_hook(giving(at), with_kwargs=True) for at, layer in enumerate(layers)]
    try:
        yield
    finally:
        base_model.rotary_emb = own
        for hook in hooks:
            hook.remove()
