"""What is right: Hugging Face at batch 1, the whole sequence computed anew with each set, without a cache."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from ropeswitch.factors.factor_set import FactorLadder, FactorSet, LayerFactors
from tests.exactness.as_transformers import never_compiled, uncompiled

# Where the reference's two best tokens are closer than this, either counts (in log-probability).
TIE = 1e-3


def load_model(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """A checkpoint with eager attention, as transformers runs it; ``changes`` go to ``from_pretrained``."""
    config = AutoConfig.from_pretrained(folder)
    cls = getattr(transformers, config.architectures[0])
    with uncompiled(config):
        model = cls.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **changes)
    return never_compiled(model.eval())


class Oracle(ABC):
    """What a greedy continuation is checked against."""

    @abstractmethod
    def log_probs(self, tokens: list[int]) -> torch.Tensor:
        """Log-probabilities of every next token, ``[len(tokens), vocabulary]``, of one whole forward."""

    @abstractmethod
    def set_at(self, length: int) -> Hashable:
        """Equal for sequence lengths at which the model rotates alike."""

    def rows(self, prompt: list[int], output: list[int]) -> Iterator[torch.Tensor]:
        """Log-probabilities of the next token, ``[vocabulary]``, before each token of ``output``.

        In one forward for each set: within one, no later token changes an earlier row. ``test_one_forward_for_each_set``
        compares them with a forward for each token.
        """
        tokens = [*prompt, *output]
        for _, same in groupby(range(len(prompt), len(tokens)), self.set_at):
            lengths = [*same]
            yield from self.log_probs(tokens[: lengths[-1]])[lengths[0] - 1 :]

    def check(self, prompt: list[int], output: list[int], log_probs: list[float], tolerance: float = 1e-3) -> None:
        """Assert that a greedy continuation is the reference's, token by token, with its log-probabilities.

        Raises:
            AssertionError: saying at which sequence length they part.
        """
        rows = self.rows(prompt, output)
        for place, (token, log_prob, row) in enumerate(zip(output, log_probs, rows, strict=True), start=len(prompt)):
            best = int(row.argmax())
            where = f"token {place} after a prompt of {len(prompt)}"
            assert token == best or row[best] - row[token] < TIE, f"{where}: {token}, the reference has {best}"
            assert abs(log_prob - float(row[token])) < tolerance, f"{where}: {log_prob} for {float(row[token])}"


@dataclass
class Reference(Oracle):
    """A model and, optionally, the ladder whose frequencies are forced on it.

    Without a ladder the model's own code decides (Phi-3's ``longrope`` rule); with one, the inverse frequencies of the set
    for the sequence's length are written into its rotary module before every forward.
    """

    model: torch.nn.Module
    ladder: FactorLadder | None = None
    forced: str | None = None
    _cache: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, ladder: FactorLadder | None = None, forced: str | None = None) -> "Reference":
        return cls(load_model(folder), ladder, forced)

    def log_probs(self, tokens: list[int]) -> torch.Tensor:
        key = tuple(tokens)
        if key not in self._cache:
            with torch.no_grad(), self._angles(len(tokens)):
                logits = self.model(torch.tensor([tokens]), use_cache=False).logits[0]
            self._cache[key] = logits.log_softmax(-1)
        return self._cache[key]

    def set_at(self, length: int) -> Hashable:
        if self.ladder is not None:
            return self.ladder.index_for(length) if self.forced is None else self.forced
        rope = self.model.config.get_text_config().rope_parameters  # type: ignore[union-attr, operator]
        kind = rope.get("rope_type")
        # transformers' rule for `longrope`; each length has frequencies of its own with `dynamic`.
        return length > rope["original_max_position_embeddings"] if kind == "longrope" else kind != "dynamic" or length

    def _angles(self, length: int) -> AbstractContextManager[None]:
        if self.ladder is None:
            return nullcontext()
        index = self.ladder.index_for(length) if self.forced is None else self.ladder.names.index(self.forced)
        return ForcedAngles(self.model, self.ladder.sets[index])


class ForcedAngles:
    """Replaces a rotary module's forward by float64 angles of one set, by layer if it has layers, while it is active."""

    def __init__(self, model: torch.nn.Module, factor_set: FactorSet) -> None:
        self.rotary = model.get_submodule("model.rotary_emb")
        self.layers = model.get_submodule("model.layers") if factor_set.layers else ()
        self.factor_set = factor_set
        self.original: Callable[..., tuple[torch.Tensor, torch.Tensor]] = self.rotary.forward
        self.hooks: list[Any] = []

    def __enter__(self) -> None:
        self.rotary.forward = self._forward  # type: ignore[method-assign]
        for layer, own in zip(self.layers, self.factor_set.layers, strict=True):  # type: ignore[arg-type]
            hook = partial(self._of_layer, own)
            self.hooks.append(layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True))

    def __exit__(self, *_: object) -> None:
        self.rotary.forward = self.original  # type: ignore[method-assign]
        for hook in self.hooks:
            hook.remove()

    def _of_layer(self, own: LayerFactors, _: object, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cos, _ = kwargs["position_embeddings"]
        places = torch.arange(cos.shape[1])[None]
        return args, kwargs | {"position_embeddings": self._forward(cos, places, own)}

    def _forward(
        self, values: torch.Tensor, position_ids: torch.Tensor, own: FactorSet | LayerFactors | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = own or self.factor_set
        factors = torch.tensor(own.factors, dtype=torch.float64)
        theta = self.rotary.config.rope_parameters["rope_theta"]  # type: ignore[union-attr]
        unscaled = theta ** -(torch.arange(len(factors), dtype=torch.float64) / len(factors))
        positions = position_ids[0].double()
        early = positions < self.factor_set.start_tokens
        angles = positions[:, None] * torch.where(early[:, None], unscaled, unscaled / factors)
        both = torch.cat((angles, angles), dim=-1)[None]
        scale = own.scale
        return (both.cos() * scale).to(values.dtype), (both.sin() * scale).to(values.dtype)
