"""One stage of the miniature's training, from a checkpoint of its own if there is one."""

import io
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from ropeswitch.factors.factor_set import FactorSet
from ropeswitch.factors.local_model import best_device
from ropeswitch.factors.set_rotary import rotated
from ropeswitch.factors.whole_file import save_bytes
from ropeswitch.models.miniature.rows import Mix, RowWriter
from ropeswitch.models.miniature.shape import THETA

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Layout:
    """How a batch's tokens lie: `share` of the batches are `rows` rows of `tokens` tokens.

    documents: each row is that many packed documents behind one anchor; 1: a row is one document.
    span: positions skip ahead at random places so that the row reaches up to `span`; 0: they do not skip.
    """

    share: float
    rows: int
    tokens: int
    documents: int = 1
    span: int = 0


@dataclass(frozen=True)
class Stage:
    """`steps` steps of AdamW; the rate rises over `warmup` steps, then falls as a cosine to `final` times itself."""

    name: str
    steps: int
    rate: float
    layouts: tuple[Layout, ...]
    factor_set: FactorSet
    warmup: int = 50
    seed: int = 0
    weight_decay: float = 0.05
    mix: Mix = field(default_factory=Mix)
    final: float = 0.05
    save_every: int = 50

    def rate_at(self, step: int) -> float:
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done)))


def skipped_positions(rng: random.Random, tokens: int, span: int, jumps: int = 3) -> torch.Tensor:
    """int64 ``[tokens]`` from 0, rising by 1 but for up to `jumps` random leaps, below `span` (PoSE, arXiv:2309.10400)."""
    places = sorted(rng.sample(range(1, tokens), rng.randint(1, jumps)))
    room = rng.randint(0, span - tokens)
    cuts = sorted(rng.randint(0, room) for _ in places[1:])
    leaps = [after - before for before, after in zip([0, *cuts], [*cuts, room], strict=True)]
    positions = torch.arange(tokens)
    for place, leap in zip(places, leaps, strict=True):
        positions[place:] += leap
    return positions


def make_optimizer(model: LlamaForCausalLM, weight_decay: float) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def step_loss(
    model: LlamaForCausalLM, writer: RowWriter, layout: Layout, factor_set: FactorSet
) -> tuple[torch.Tensor, float, float]:
    """The weighted loss of one batch, the mean loss of its chronicle tokens and the share of key digits found."""
    rng = writer.rng
    if layout.documents == 1:
        documents = None
        rows = writer.rows(layout.rows, layout.tokens)
    else:
        length = (layout.tokens - 1) // layout.documents
        documents = [length] * layout.documents
        rows = writer.packed(layout.rows, documents)
    tokens = rows.ids.shape[1]
    positions = skipped_positions(rng, tokens, layout.span) if layout.span > tokens else torch.arange(tokens)
    ids = rows.ids.to(model.device)
    with rotated(model.base_model, THETA, [factor_set], positions):
        hidden = model.base_model(ids, use_cache=False, documents=documents).last_hidden_state
    weights = rows.weights[:, 1:].flatten().to(model.device)
    judged = weights > 0
    logits = model.lm_head(hidden[:, :-1].flatten(0, 1)[judged])
    labels, weights = ids[:, 1:].flatten()[judged], weights[judged]
    losses = cross_entropy(logits, labels, reduction="none")
    with torch.no_grad():
        text = losses[(weights <= 1.0) & (weights > 0.5)].mean().item()
        key = weights > 1.0
        found = (logits[key].argmax(-1) == labels[key]).float().mean().item()
    return (losses * weights).sum() / weights.sum(), text, found


def train(
    stage: Stage,
    make_model: Callable[[], LlamaForCausalLM],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    tell: Callable[[str], None] = print,
) -> LlamaForCausalLM:
    """Train to the stage's last step, on a GPU where there is one.

    A stopped run goes on from `folder`'s checkpoint and ends as an unstopped one.

    Raises:
        ValueError: the checkpoint is of another stage.
        FloatingPointError: a loss is not finite.
    """
    torch.manual_seed(stage.seed)
    model = make_model().to(best_device())
    model.set_attn_implementation("anchor")
    model.train()
    optimizer = make_optimizer(model, stage.weight_decay)
    first = load(folder, stage, model, optimizer)
    started, sums = time.monotonic(), [0.0, 0.0, 0.0, 0]
    for step in range(first, stage.steps):
        rng = random.Random(f"{stage.name}-{stage.seed}-{step}")
        (layout,) = rng.choices(stage.layouts, [each.share for each in stage.layouts])
        for group in optimizer.param_groups:
            group["lr"] = stage.rate_at(step)
        loss, text, found = step_loss(model, RowWriter(tokenizer, rng, stage.mix), layout, stage.factor_set)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"stage {stage.name}, step {step}: the loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sums = [
            a + b
            for a, b in zip(sums, (loss.item(), text, found if found == found else 0.0, found == found), strict=True)
        ]
        done = step + 1
        if done % 10 == 0:
            seconds = (time.monotonic() - started) / (done - first)
            tell(
                f"{stage.name}: step {done}/{stage.steps} loss {sums[0] / 10:.3f} text {sums[1] / 10:.3f} "
                f"digits {sums[2] / max(1, sums[3]):.3f} {seconds:.2f} s/step, "
                f"{seconds * (stage.steps - done) / 60:.1f} min left"
            )
            sums = [0.0, 0.0, 0.0, 0]
        if done % stage.save_every == 0 or done == stage.steps:
            save(folder, stage, done, model, optimizer)
    return model.cpu().eval()


def save(folder: Path, stage: Stage, done: int, model: LlamaForCausalLM, optimizer: torch.optim.AdamW) -> None:
    """An interruption while writing leaves the checkpoint before.

    Raises:
        FactorError: when it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {
        "stage": repr(asdict(stage)),
        "done": done,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    content = io.BytesIO()
    torch.save(state, content)
    save_bytes(folder / CHECKPOINT, content.getvalue(), overwrite=True)


def load(folder: Path, stage: Stage, model: LlamaForCausalLM, optimizer: torch.optim.AdamW) -> int:
    """Restore `folder`'s checkpoint; the number of steps done, 0 without one."""
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True, map_location=model.device)
    if state["stage"] != repr(asdict(stage)):
        raise ValueError(f"{path} is of another stage; delete it or work in another folder")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["done"])
