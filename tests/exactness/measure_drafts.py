"""Measures how many drafts of a trained EAGLE head the bundled model accepts, with angles of either kind.

``python -m tests.exactness.measure_drafts train FOLDER`` trains two heads of one layer on the bundled model's own kind of
text, in sequences of 256 tokens: one with plain rotary embeddings, one with the factors of the model's first sets.
``python -m tests.exactness.measure_drafts FOLDER HEAD ANGLES`` serves the model with one of them and prints the shares of
accepted drafts below, across and above the limit of 1,024 tokens.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, linear, rms_norm, scaled_dot_product_attention, silu, smooth_l1_loss
from transformers import AutoTokenizer, LlamaForCausalLM

from ropeswitch.factors.factor_set import FactorLadder
from tests.exactness.chronicle import chronicle

MODEL = Path(__file__).resolve().parents[2] / "models" / "longrope-mini"
TOKENS, ROWS, STEPS, RATE = 256, 4, 300, 3e-3
WIDTH, HEADS, HEAD, INNER, EPSILON = 192, 2, 32, 512, 1e-6
# Values of a set that the training's texts are in.
FIRST = "r1"
SPANS = {
    "below": (560, 700, 850, 900),
    "across": (985, 995, 1005, 1015),
    "above": (1100, 1300, 1600, 2000),
}
ANSWER = 64


def ladder() -> FactorLadder:
    return FactorLadder.checked(json.loads((MODEL / "factors.json").read_text())["sets"])


def token_rows(tokenizer: Any, rng: random.Random, count: int, tokens: int) -> list[list[int]]:
    texts = [chronicle(rng, tokens * 7) for _ in range(count)]
    return [[tokenizer.bos_token_id, *tokenizer.encode(text, add_special_tokens=False)][:tokens] for text in texts]


def angles_of(head: str, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = 10000.0 ** -(torch.arange(HEAD // 2, dtype=torch.float64) / (HEAD // 2))
    scale = 1.0
    if head == "laddered":
        each = next(entry for entry in ladder().sets if entry.name == FIRST)
        inverse, scale = inverse / torch.tensor(each.factors, dtype=torch.float64), each.scale
    both = torch.arange(tokens)[:, None] * inverse
    both = torch.cat((both, both), dim=-1)
    return (both.cos() * scale).float(), (both.sin() * scale).float()


def forward(
    w: dict[str, torch.Tensor], embedded: torch.Tensor, hidden: torch.Tensor, cos: Any, sin: Any
) -> torch.Tensor:
    """EAGLE's head as vLLM runs it: no normalisation before its attention, none behind its layer."""
    x = linear(torch.cat((embedded, hidden), dim=-1), w["fc.weight"])
    heads = [
        linear(x, w[f"layers.0.self_attn.{name}_proj.weight"]).unflatten(-1, (-1, HEAD)).transpose(1, 2)
        for name in "qkv"
    ]
    half = HEAD // 2
    q, k = (each * cos + torch.cat((-each[..., half:], each[..., :half]), dim=-1) * sin for each in heads[:2])
    mixed = scaled_dot_product_attention(q, k, heads[2], is_causal=True).transpose(1, 2).flatten(-2)
    x = x + linear(mixed, w["layers.0.self_attn.o_proj.weight"])
    normed = rms_norm(x, (WIDTH,), w["layers.0.post_attention_layernorm.weight"], EPSILON)
    gate, up = (linear(normed, w[f"layers.0.mlp.{name}_proj.weight"]) for name in ("gate", "up"))
    return x + linear(silu(gate) * up, w["layers.0.mlp.down_proj.weight"])


def train(folder: Path, head: str) -> None:
    torch.manual_seed(0)
    tokenizer, rng = AutoTokenizer.from_pretrained(MODEL), random.Random(1)
    model = LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    shapes = {
        "fc.weight": (WIDTH, 2 * WIDTH),
        **{f"layers.0.self_attn.{name}_proj.weight": (HEADS * HEAD, WIDTH) for name in "qkv"},
        "layers.0.self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
        "layers.0.mlp.gate_proj.weight": (INNER, WIDTH),
        "layers.0.mlp.up_proj.weight": (INNER, WIDTH),
        "layers.0.mlp.down_proj.weight": (WIDTH, INNER),
    }
    w = {name: torch.randn(shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    w["layers.0.post_attention_layernorm.weight"] = torch.ones(WIDTH)
    for each in w.values():
        each.requires_grad_()
    optimizer = torch.optim.AdamW(w.values(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
    cos, sin = angles_of(head, TOKENS - 1)
    vocabulary = model.get_output_embeddings().weight.detach()
    for step in range(STEPS):
        ids = torch.tensor(token_rows(tokenizer, rng, ROWS, TOKENS))
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state
            likely = linear(hidden[:, 1:], vocabulary).argmax(-1)
        made = forward(w, model.get_input_embeddings()(ids[:, 1:]).detach(), hidden[:, :-1], cos, sin)
        loss = cross_entropy(linear(made, vocabulary).flatten(0, 1), likely.flatten()) + smooth_l1_loss(
            made, hidden[:, 1:]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            agree = (linear(made, vocabulary).argmax(-1) == likely).float().mean()
            print(f"{head}: step {step + 1}, loss {loss.item():.3f}, first drafts right {agree.item():.3f}", flush=True)
    save(folder / head, head, {name: value.detach() for name, value in w.items()})


def save(folder: Path, head: str, weights: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((MODEL / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "attention_bias": False, "dtype": "float32", "max_position_embeddings": 32768}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    if head == "laddered":
        sets = ladder().sets
        scales = {"short_mscale": sets[0].scale, "long_mscale": sets[2].scale}
        config["rope_parameters"] = {
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": list(sets[0].factors),
            "long_factor": list(sets[2].factors), "original_max_position_embeddings": 1024, **scales,
        }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def measure(folder: Path, head: str, angles: str) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from ropeswitch.model_patches.switch import draft_rotary
    from tests.exactness.acceptance import watch
    from tests.exactness.engines import engine, greedy, run

    if angles == "stock":
        draft_rotary._rotation = lambda *_: None  # type: ignore[assignment]
    draft: dict[str, Any] = {"method": "eagle", "model": str(folder / head), "num_speculative_tokens": 3}
    if angles == "itself":
        draft |= {"method": "draft_model", "model": str(MODEL)}
    llm = engine(
        MODEL, ladder(), speculative_config=draft, max_model_len=8192, max_num_batched_tokens=2048,
        kv_cache_memory_bytes=256 << 20, enable_prefix_caching=False,
    )  # fmt: skip
    tokenizer, rng = AutoTokenizer.from_pretrained(MODEL), random.Random(2)
    for name, lengths in SPANS.items():
        found = watch(llm.llm_engine.engine_core.engine_core.scheduler)
        run(llm, [token_rows(tokenizer, rng, 1, length)[0] for length in lengths], greedy(ANSWER))
        total = found.total
        line = f"{head} head, {angles} angles, {name}: {total.accepted}/{total.drafted} = {total.share:.3f}"
        if name == "across":
            after = found.after_switch
            line += f"; first 8 steps after the switch: {after.accepted}/{after.drafted} = {after.share:.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        for each in ("plain", "laddered"):
            train(Path(sys.argv[2]), each)
    else:
        measure(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
