"""Learns factors and scales by gradient, one list for all layers or one for each: the model's weights are frozen.

A step takes the gradient of every document, each by one forward and one backward pass, in which every layer is computed
twice instead of being kept. It moves each logarithm against the mean gradient, by how far the documents agree in it: mean
over standard deviation, at most one unit. Other documents choose between steps of several sizes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.factor_set import FactorSet, LayerFactors
from ropeswitch.factors.kept import Kept, digest
from ropeswitch.factors.local_model import CosSin, LocalModel, SetRotary, rotated
from ropeswitch.kernels.angles import inverse_frequencies

# The most that a step of size 1 moves the logarithm of a factor and of a scale, and turns a pair at the end of a document,
# in radians: beyond that, a gradient says little.
MOVE, SCALE, TURN = 0.4, 0.05, 0.5
SIZES = (0.5, 1.0, 2.0)
LOGITS = 2048  # tokens whose logits are in memory at once


class LearnedRotary(SetRotary):
    """Rotates with factors and scales that have a gradient.

    ``moves``, ``[layers, pairs + 1]``, are added to the logarithms of the factors and of the scale of ``start``, in the
    units of a step for sequences of ``length`` tokens.
    """

    def __init__(self, theta: float, start: FactorSet, layers: int, length: int, device: torch.device) -> None:
        super().__init__(theta, start)
        pairs, self.layers = len(start.factors), layers
        plain = torch.from_numpy(inverse_frequencies(theta, 2 * pairs, (1.0,) * pairs))
        sets = [start.of_layer(layer) for layer in range(layers)]
        logs = torch.tensor([[*each.factors, each.scale] for each in sets], dtype=torch.float64).log()
        turned = length * plain / logs[:, :-1].exp()
        self.plain, self.logs = plain.to(device), logs.to(device)
        self.units = torch.cat(((TURN / turned).clamp(max=MOVE), torch.full((layers, 1), SCALE)), 1).to(device)
        self.moves = nn.Parameter(torch.zeros_like(self.logs))

    def values(self) -> torch.Tensor:
        """Return the factors and the scale of each layer, ``[layers, pairs + 1]``."""
        return (self.logs + self.units * self.moves).exp()

    def tables(self, layer: int, positions: torch.Tensor) -> CosSin:
        *factors, scale = self.values()[layer].split([len(self.plain), 1])
        angles = positions[:, None].double() * (self.plain / factors[0])
        return angles.cos() * scale, angles.sin() * scale

    def as_set(self, like: FactorSet) -> FactorSet:
        layers = tuple(LayerFactors(tuple(factors), scale) for *factors, scale in self.values().tolist())
        made = replace(like, start_tokens=0, layers=layers)
        return made if self.layers > 1 else made.of_layer(0)


def learn(
    model: LocalModel, start: FactorSet, layers: int, documents: Sequence[torch.Tensor], first: int, steps: int,
    judge: Callable[[FactorSet], float], kept: Kept, passed: Callable[[int], None],
) -> FactorSet:  # fmt: skip
    """Return the best set after at most ``steps`` steps from ``start``; the first that gains nothing is the last.

    Args:
        model: The model, whose weights stay as they are.
        start: The set to begin with.
        layers: The number of layers, for a list of factors for each; 1 for one list.
        documents: At least two documents' token ids, each ``[n]`` int64.
        first: The first token whose loss counts, at least 1.
        steps: The most steps.
        judge: Returns a set's mean loss on other documents, which decide the size of a step and when to stop.
        kept: Keeps each document's gradient, so that a stopped run repeats no pass.
        passed: Called with the tokens of each pass over a document; a backward pass counts as two.

    Raises:
        FactorError: when the model cannot be learned through, or a gradient is not finite.
    """
    best, lowest = start, judge(start)
    for _ in range(steps):
        rotary = LearnedRotary(model.rope.theta, best, layers, len(documents[0]), model.model.device)
        gradients = []
        for ids in documents:
            of = digest(["gradient", layers, best.rotates, ids.tolist()])
            gradients.append(kept.get(of, lambda ids=ids, at=rotary: _gradient(model, at, ids, first)))  # type: ignore[misc]
            passed(3 * len(ids))
        found = torch.tensor(gradients, dtype=torch.float64, device=rotary.moves.device)
        agreed = (found.mean(0) / found.std(0).clamp(min=1e-12)).clamp(-1, 1)
        tried = []
        for size in SIZES:
            rotary.moves.data = -size * agreed
            made = rotary.as_set(start)
            tried.append((judge(made), made))
        loss, made = min(tried, key=lambda each: each[0])
        if not loss < lowest:
            break
        best, lowest = made, loss
    return best


def _gradient(model: LocalModel, rotary: LearnedRotary, ids: torch.Tensor, first: int) -> list[list[float]]:
    """Return the gradient of a document's mean loss by ``rotary.moves``, ``[layers, pairs + 1]``."""
    ids, head = ids.to(model.model.device), model.model.get_output_embeddings()

    def part(states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(head(states).float(), labels, reduction="sum")

    with _learning(model.model), rotated(model.model.base_model, rotary):
        hidden = model.model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        total = hidden.new_zeros((), dtype=torch.float32)
        for begin in range(first, len(ids), LOGITS):
            labels = ids[begin : begin + LOGITS]
            states = hidden[begin - 1 : begin - 1 + len(labels)]
            total = total + checkpoint(part, states, labels, use_reentrant=False)
        (found,) = torch.autograd.grad(total / (len(ids) - first), rotary.moves)
    if not found.isfinite().all():
        raise FactorError("learned: a gradient is not finite with these factors and this dtype; use another --dtype")
    return list(found.tolist())


@contextmanager
def _learning(model: Any) -> Iterator[None]:
    """Freeze the weights inside the block, and keep no layer's activations."""
    asked = [each.requires_grad for each in model.parameters()]
    # Only these look at the flag of their own; without it in the others, nothing is dropped out.
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    try:
        if layers:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for layer in layers:
            layer.training = True
        model.requires_grad_(False)
        yield
    finally:
        if layers:
            model.gradient_checkpointing_disable()
        model.eval()
        for parameter, value in zip(model.parameters(), asked, strict=True):
            parameter.requires_grad_(value)
