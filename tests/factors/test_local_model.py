"""A model under given sets: losses and tokens against Hugging Face's own, and what is refused when it is opened."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from ropeswitch.factors.factor_set import FactorError, FactorSet, LayerFactors
from ropeswitch.factors.local_model import LocalModel, cos_sin
from tests.exactness.reference import ForcedAngles

SIZE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.3}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
SHORT, LONG = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0]


def phi3() -> transformers.Phi3ForCausalLM:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": SHORT, "long_factor": LONG}
    sizes = SIZE | HEADS | {"original_max_position_embeddings": 16, "pad_token_id": 0}
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(rope_parameters=rope, **sizes))


def opened(model: transformers.PreTrainedModel) -> LocalModel:
    return LocalModel.of(model.eval(), None, model.config.to_dict(), "tiny")


@pytest.fixture(scope="module")
def model() -> LocalModel:
    torch.manual_seed(0)
    return opened(phi3())


def test_losses_are_those_of_hugging_face_on_both_sides_of_its_switch(model: LocalModel) -> None:
    assert model.ladder is not None and model.rope.original_length == 16
    for length in (16, 17, 60):
        ids = torch.randint(50, (3, length))
        logits = model.model(ids, use_cache=False).logits
        theirs = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(3, -1)
        chosen = model.ladder.sets[model.ladder.index_for(length)]
        other = model.ladder.sets[1 - model.ladder.index_for(length)]
        torch.testing.assert_close(model.losses(ids, chosen), theirs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.losses(ids, chosen, first=9), theirs[:, 8:], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(model.losses(ids, other), theirs, rtol=1e-4, atol=1e-5)


def test_generation_keeps_its_set_and_is_what_each_whole_sequence_gives(model: LocalModel) -> None:
    assert model.ladder is not None
    ids = torch.randint(50, (2, 12))
    for each in model.ladder.sets:
        whole = ids
        for _ in range(8):
            hidden = model.hidden(whole, each)[:, -1]
            token = model.model.get_output_embeddings()(hidden).argmax(-1, keepdim=True)
            whole = torch.cat((whole, token), 1)
        assert torch.equal(model.generate(ids, each, 8), whole[:, 12:])


def test_each_layer_rotates_with_its_own_factors(model: LocalModel) -> None:
    pairs, ids = model.rope.pairs, torch.randint(50, (2, 40))
    layers = tuple(LayerFactors((1.5 + layer,) * pairs, 1.2 - 0.3 * layer) for layer in range(2))
    chosen = FactorSet("a", 64, (1.0,) * pairs, start_tokens=4, layers=layers)
    with ForcedAngles(model.model, chosen):
        wanted = model.model(ids, use_cache=False).logits[:, :-1]
    found = model.losses(ids, chosen).flatten()
    torch.testing.assert_close(found, cross_entropy(wanted.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"))
    assert not torch.allclose(found, model.losses(ids, replace(chosen, layers=layers[::-1])).flatten(), atol=1e-3)
    with pytest.raises(FactorError, match="set 'a': 1 layers; the model has 2"):
        model.losses(ids, replace(chosen, layers=layers[:1]))


def test_start_tokens_keep_their_angles_and_all_have_the_scale() -> None:
    positions = torch.tensor([0, 3, 4, 5, 100_000])
    factors = (2.0, 4.0)
    cos, sin = cos_sin(100.0, FactorSet("a", 10, factors, 1.5, start_tokens=4), positions)
    theta = torch.tensor([1.0, 0.1], dtype=torch.float64)
    for row, position in enumerate(positions.tolist()):
        angles = position * theta / (1 if position < 4 else torch.tensor(factors, dtype=torch.float64))
        torch.testing.assert_close(cos[row], (1.5 * angles.cos()).float(), rtol=0, atol=2e-7)
        torch.testing.assert_close(sin[row], (1.5 * angles.sin()).float(), rtol=0, atol=2e-7)


GPT2 = transformers.GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=1, n_head=2)
COHERE = transformers.CohereConfig(**SIZE, **HEADS)
GEMMA2 = transformers.Gemma2Config(**SIZE, **HEADS, head_dim=16, final_logit_softcapping=0.1)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no rope": (lambda: transformers.GPT2LMHeadModel(GPT2), "GPT2LMHeadModel has no rotary embedding"),
    "interleaved": (lambda: transformers.CohereForCausalLM(COHERE), "interleaves its rotary pairs"),
    "soft cap": (lambda: transformers.Gemma2ForCausalLM(GEMMA2), "scales its logits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_would_be_judged_wrong_are_refused(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(FactorError, match=f"model 'tiny': .*{why}"):
        opened(make())
