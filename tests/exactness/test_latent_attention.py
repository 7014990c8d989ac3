"""Models with multi-head latent attention: plain, trained with DeepSeek's YaRN, with LongRoPE, and with a factor file."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm.model_executor.layers.fused_moe.router import zero_expert_router

from ropeswitch.factors.factor_set import FactorLadder
from tests.exactness.auto_cases import AUTO, CHUNKED, LONGEST, PLAIN, WINDOW, check_twice, yarn_sets
from tests.exactness.batches import Start, check_batch, full_but
from tests.exactness.checkpoints import longrope
from tests.exactness.engines import greedy, prompts, run
from tests.exactness.latent_models import MODELS, PAIRS, REFERENCE_KERNEL, TRAINED, checkpoint
from tests.exactness.reference import Reference
from tests.exactness.static_reference import StaticReference
from tests.exactness.test_ladders import ladder
from tests.matrix.kernels.expert_routing import topk_softmax, zero_experts


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs LongCat's router with torch in place of its two GPU kernels; the layers around them stay upstream's."""
    monkeypatch.setattr("vllm._custom_ops.topk_softmax", topk_softmax)
    monkeypatch.setattr(zero_expert_router, "zero_experts_compute_triton", zero_experts)


def engine_of(family: str) -> dict[str, Any]:
    """Engine arguments; MiniCPM3's latents are expanded to keys and values, for plain attention."""
    return CHUNKED if family == "MiniCPM3" else REFERENCE_KERNEL | {"max_model_len": LONGEST}


@pytest.mark.full
@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize("family", MODELS)
def test_a_plain_model(start: Start, tmp_path: Path, family: str) -> None:
    folder = checkpoint(tmp_path, family)
    check_twice(start(folder, AUTO, **engine_of(family)), StaticReference.load(folder, yarn_sets(PLAIN)))


TRAININGS: dict[str, dict[str, Any]] = {
    "DeepseekV3": {},
    "DeepseekV2": {"mscale": 0.707, "mscale_all_dim": 0.707},
    "DeepseekV3-other-slopes": {"mscale": 1.3, "mscale_all_dim": 0.6},
    "DeepseekV3-without-slopes": {"mscale": None, "mscale_all_dim": None},
}


@pytest.mark.parametrize("case", full_but(["DeepseekV3"], TRAININGS))
def test_yarn_that_a_model_was_trained_with(start: Start, tmp_path: Path, case: str) -> None:
    """The config's own YaRN to its end, then larger ratios of the same window; the softmax scale follows the ratio."""
    rope = TRAINED | TRAININGS[case]
    folder = checkpoint(tmp_path, case.partition("-")[0], rope)
    llm = start(folder, AUTO, **engine_of(case))
    check_twice(
        llm, StaticReference.load(folder, {end: rope | {"factor": end / 32} for end in (WINDOW, 128, 256, 512)})
    )


@pytest.mark.full
@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize("family", ["AXK1", "Glm4MoeLite", "LongcatFlash"])
def test_yarn_that_users_added(start: Start, tmp_path: Path, family: str) -> None:
    """The window unscaled, with the plain softmax scale; the config's YaRN above it."""
    added = TRAINED | {"original_max_position_embeddings": WINDOW}
    folder = checkpoint(tmp_path, family, added)
    sets = {WINDOW: PLAIN} | {end: added | {"factor": end / WINDOW} for end in (128, 256, 512)}
    check_twice(start(folder, {"ladder": "yarn"}, **engine_of(family)), StaticReference.load(folder, sets))


@pytest.mark.full
def test_longrope(start: Start, tmp_path: Path) -> None:
    rope = longrope(16) | {"factor": 8.0}
    folder = checkpoint(tmp_path, "MiniCPM3", rope, max_position_embeddings=512)
    check_batch(start(folder), Reference.load(folder), [5, 20, 60, 63, 64, 65, 150, 300], max_tokens=12)


class ScaledReference(Reference):
    """Also forces the softmax scale of the set for the sequence's length."""

    @contextmanager
    def _angles(self, length: int) -> Any:  # type: ignore[override]
        assert self.ladder is not None
        scale = self.ladder.sets[self.ladder.index_for(length)].softmax_scale
        layers = [layer.self_attn for layer in self.model.get_submodule("model.layers")]
        with ExitStack() as stack:
            stack.enter_context(super()._angles(length))
            for layer in layers:
                plain = layer.scaling
                stack.callback(setattr, layer, "scaling", plain)
                layer.scaling = plain * scale
            yield


@pytest.mark.full
def test_softmax_scales_of_a_factor_file(start: Start, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "DeepseekV3")
    sets = FactorLadder(
        tuple(replace(each, softmax_scale=1 + 0.4 * i) for i, each in enumerate(ladder(PAIRS, start_tokens=4).sets))
    )
    llm = start(folder, sets, **REFERENCE_KERNEL)
    reference = ScaledReference.load(folder, sets)
    # The scale shows: without it the reference gives other log-probabilities.
    (prompt,) = prompts([97])
    assert (reference.log_probs(prompt)[-1] - Reference.load(folder, sets).log_probs(prompt)[-1]).abs().max() > 0.02
    check_batch(llm, reference, [20, 30, 31, 32, 64, 95, 96, 97, 150], max_tokens=12)


@pytest.mark.full
def test_bfloat16(start: Start, tmp_path: Path) -> None:
    """vLLM's own choice of kernel: with AMX one for bfloat16 only, with chunked prefills and a prefix cache.

    Compared where the reference is surer than twice the largest error of Hugging Face's own bfloat16 model.
    """
    folder = checkpoint(tmp_path, "DeepseekV3", TRAINED)
    reference = StaticReference.load(folder, {end: TRAINED | {"factor": end / 32} for end in (WINDOW, 128, 256, 512)})
    llm = start(folder, AUTO, dtype="bfloat16", **CHUNKED)
    (longest,) = prompts([440], seed=4)
    token_lists = [longest[:length] for length in range(20, 440, 3)]
    compared = told_apart = 0
    error = {end: _bfloat16_error(folder, each, longest[:end]) for end, each in reference.by_end.items()}
    # Again with what the prefix cache has of them.
    for _ in range(2):
        for prompt, (tokens, _) in zip(token_lists, run(llm, token_lists, greedy(1)), strict=True):
            end = next(end for end in reference.by_end if len(prompt) <= end)
            row = reference.log_probs(prompt)[-1]
            best, second = row.topk(2).values
            if best - second > 2 * error[end]:
                assert tokens[0] == int(row.argmax()), len(prompt)
                others = (each.log_probs(prompt)[-1] for other, each in reference.by_end.items() if other != end)
                compared += 1
                told_apart += any(int(other.argmax()) != tokens[0] for other in others)
    # Often enough to mean something, and mostly where another set would have given another token.
    assert compared > 20 and told_apart > compared / 2, (compared, told_apart)


def _bfloat16_error(folder: Path, reference: Reference, tokens: list[int]) -> float:
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=reference.model.config, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        found = model(torch.tensor([tokens]), use_cache=False).logits[0].float().log_softmax(-1)
    return float((found - reference.log_probs(tokens)).abs().max())
