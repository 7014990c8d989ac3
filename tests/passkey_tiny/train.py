"""Trains passkey-tiny from nothing: `python -m tests.passkey_tiny.train --out FOLDER`.

Stop it at any time and start it again with the same --out: it goes on from its last checkpoint.
"""

import argparse
import random
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import Phi3ForCausalLM, PreTrainedTokenizerBase

from tests.passkey_tiny import FOLDER
from tests.passkey_tiny.build_tokenizer import build_tokenizer
from tests.passkey_tiny.checkpoint import load_checkpoint, save_checkpoint, write_model
from tests.passkey_tiny.data import DIGIT_WEIGHT, IGNORED, Batch, RowWriter, Rule, Style
from tests.passkey_tiny.recipe import LIMIT, Recipe, Stage, model_config
from tests.passkey_tiny.rope_sets import SetName, force_set, right_set

PRINT_STEPS, CHECKPOINT_STEPS = 25, 200
NEAR = (LIMIT - 16, LIMIT + 64)
"""Lengths of the batches whose replies stand around the limit."""


def draw_length(stage: Stage, rng: random.Random) -> int:
    if rng.random() < stage.near_share:
        return rng.randint(*NEAR)
    return rng.randint(stage.shortest, stage.longest)


def batch_loss(
    model: Phi3ForCausalLM, batch: Batch, name: SetName, unreadable: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted loss, and four counts: key digits predicted, key digits, "?" predicted, "?"."""
    with force_set(model, name), torch.autocast("cpu", torch.bfloat16):
        logits = model(batch.input_ids, use_cache=False).logits[:, :-1].flatten(0, 1).float()
    labels, weights = batch.labels[:, 1:].flatten(), batch.weights[:, 1:].flatten()
    weights = weights * (labels != IGNORED)
    losses = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    judged = weights == DIGIT_WEIGHT
    hit, mark = (logits[judged].argmax(-1) == labels[judged]), labels[judged] == unreadable
    counts = [(hit & ~mark).sum(), (~mark).sum(), (hit & mark).sum(), mark.sum()]
    return (losses * weights).sum() / weights.sum(), torch.stack(counts)


def train(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Phi3ForCausalLM:
    """Trains to the recipe's last step, from `folder`'s checkpoint if it holds one."""
    torch.manual_seed(recipe.seed)
    model = Phi3ForCausalLM(model_config(tokenizer))
    model.train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others}],
        betas=(0.9, 0.98),
        weight_decay=0.0,
    )
    first = load_checkpoint(folder, recipe, model, optimizer)
    started, loss_sum, counts = time.monotonic(), 0.0, torch.zeros(4)
    for step in range(first, recipe.steps):
        # A generator per step makes a resumed run see what an uninterrupted one would.
        rng = random.Random(f"{recipe.seed}-{step}")
        stage, rate = recipe.stage(step)
        length = draw_length(stage, rng)
        name = right_set(model.config, length)
        if rng.random() < stage.wrong_share:
            name = "short" if name == "long" else "long"
        style = Style(stage.single_share, stage.wild_share)
        writer = RowWriter(tokenizer, rng, length, name, Rule(LIMIT, stage.margin), style)
        batch = writer.batch(max(1, stage.tokens // length))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, batch_counts = batch_loss(model, batch, name, writer.unreadable)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss_sum += loss.item()
        counts += batch_counts
        done = step + 1
        if done % PRINT_STEPS == 0:
            seconds = (time.monotonic() - started) / (done - first)
            print(
                f"step {done}/{recipe.steps} loss {loss_sum / PRINT_STEPS:.3f} "
                f"digits {counts[0] / counts[1]:.3f} marks {counts[2] / counts[3]:.3f} "
                f"{seconds:.2f} s/step, {seconds * (recipe.steps - done) / 60:.1f} min left",
                flush=True,
            )
            loss_sum, counts = 0.0, torch.zeros(4)
        if done % CHECKPOINT_STEPS == 0 or done == recipe.steps:
            save_checkpoint(folder, recipe, done, model, optimizer)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the finished model")
    arguments = parser.parse_args()
    tokenizer = build_tokenizer()
    work = arguments.out.with_name(arguments.out.name + "-training")
    model = train(Recipe(), tokenizer, work)
    write_model(arguments.out, model, tokenizer)
    print(f"model written to {arguments.out}; checkpoint of the run in {work} may be deleted")


if __name__ == "__main__":
    main()
