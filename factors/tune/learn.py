"""Learns one list of factors and its scale by gradient: the model's weights are frozen, and the loss is differentiable.

Adam (arXiv:1412.6980) moves the logarithms. A step takes the mean gradient of a few documents, each of one forward and one
backward pass, in which every layer is computed twice instead of being kept.
"""

import math
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
from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.kept import Kept, digest
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.kernels.angles import inverse_frequencies

RATE = 0.008
# A step turns no pair by more, in radians at the end of a document: beyond that, a gradient says nothing about the step.
TURN = 0.5
TOGETHER = 2  # documents of one step
PATIENCE = 2  # steps without a better loss on the documents to stop by
LOGITS = 2048  # tokens whose logits are in memory at once


class LearnedRotary(nn.Module):
    """Replaces a model's rotary embedding, as :class:`~ropeswitch.factors.local_model.SetRotary`, with a gradient.

    ``moves``, ``[pairs + 1]``, are added to the logarithms of the factors and of the scale of ``start``, each in units that
    suit sequences of ``length`` tokens.
    """

    def __init__(self, theta: float, start: FactorSet, length: int, device: torch.device) -> None:
        super().__init__()
        pairs = len(start.factors)
        plain = torch.from_numpy(inverse_frequencies(theta, 2 * pairs, (1.0,) * pairs))
        logs = torch.tensor([*map(math.log, start.factors), math.log(start.scale)], dtype=torch.float64)
        turned = RATE * length * plain / logs[:-1].exp()
        self.plain, self.logs = plain.to(device), logs.to(device)
        self.units = torch.cat(((TURN / turned).clamp(max=1.0), torch.ones(1))).to(device)
        self.moves = nn.Parameter(torch.zeros(pairs + 1, dtype=torch.float64, device=device))

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin ``[1, n, 2 * pairs]`` with equal halves, in the dtype of ``x``."""
        values = (self.logs + self.units * self.moves).exp()
        angles = position_ids[0, :, None].double() * (self.plain / values[:-1])
        cos, sin = (part.cos() * values[-1] for part in (angles, angles - math.pi / 2))
        return torch.cat((cos, cos), -1)[None].to(x), torch.cat((sin, sin), -1)[None].to(x)

    def as_set(self, like: FactorSet) -> FactorSet:
        *factors, scale = (self.logs + self.units * self.moves.detach()).exp().tolist()
        return replace(like, factors=tuple(factors), scale=scale, start_tokens=0)


def learn(
    model: LocalModel,
    start: FactorSet,
    documents: Sequence[torch.Tensor],
    first: int,
    steps: int,
    judge: Callable[[FactorSet], float],
    kept: Kept,
    passed: Callable[[int], None],
) -> FactorSet:
    """Return the best set after at most ``steps`` steps from ``start``.

    Args:
        model: The model, whose weights stay as they are.
        start: The set to begin with.
        documents: Token ids, each ``[n]`` int64, in the order in which they are used.
        first: The first token whose loss counts, at least 1.
        steps: The most steps.
        judge: Returns a set's mean loss on other documents, which decide the best and when to stop.
        kept: Keeps each document's gradient, so that a stopped run repeats no pass.
        passed: Called with the tokens of each pass over a document; a backward pass counts as two.

    Raises:
        FactorError: when the model cannot be learned through, or a gradient is not finite.
    """
    rotary = LearnedRotary(model.rope.theta, start, len(documents[0]), model.model.device)
    optimizer = torch.optim.Adam(rotary.parameters(), lr=RATE, betas=(0.9, 0.99))
    best, lowest, since = start, judge(start), 0
    for step in range(steps):
        gradients = []
        for number in range(TOGETHER):
            ids = documents[(step * TOGETHER + number) % len(documents)]
            now = rotary.as_set(start)
            of = digest(["gradient", now.factors, now.scale, ids.tolist()])
            gradients.append(kept.get(of, lambda ids=ids: _gradient(model, rotary, ids, first)))  # type: ignore[misc]
            passed(3 * len(ids))
        rotary.moves.grad = torch.tensor(gradients, dtype=torch.float64, device=rotary.moves.device).mean(0)
        optimizer.step()
        made = rotary.as_set(start)
        if (found := judge(made)) < lowest:
            best, lowest, since = made, found, 0
        elif (since := since + 1) == PATIENCE:
            break
    return best


def _gradient(model: LocalModel, rotary: LearnedRotary, ids: torch.Tensor, first: int) -> list[float]:
    """Return the gradient of a document's mean loss by ``rotary.moves``."""
    ids, head = ids.to(model.model.device), model.model.get_output_embeddings()

    def part(states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(head(states).float(), labels, reduction="sum")

    with _learning(model.model, rotary):
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
def _learning(model: Any, rotary: LearnedRotary) -> Iterator[None]:
    """Rotate by ``rotary`` inside the block, with frozen weights and without keeping the layers' activations."""
    base = model.base_model
    own, asked = base.rotary_emb, [each.requires_grad for each in model.parameters()]
    # Only these look at the flag of their own; without it in the others, nothing is dropped out.
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    try:
        if layers:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for layer in layers:
            layer.training = True
        model.requires_grad_(False)
        base.rotary_emb = rotary
        yield
    finally:
        base.rotary_emb = own
        if layers:
            model.gradient_checkpointing_disable()
        model.eval()
        for parameter, value in zip(model.parameters(), asked, strict=True):
            parameter.requires_grad_(value)
