"""In bfloat16 the engine agrees with the float32 reference wherever the reference is surer than bfloat16 can be wrong.

Teacher-forced: every place of a prompt is compared, so one disagreement does not hide what comes after it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from vllm import LLM

from ropeswitch.factors.hf_config import ladder_from_config
from tests.exactness.engines import generate, greedy, prompts
from tests.exactness.reference import Reference, load_model

LENGTHS = [5, 40, 62, 63, 64, 65, 66, 100, 200, 300]


def sure_places(folder: Path, reference: Reference, prompt: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference's best next tokens ``[places]``, and where bfloat16 cannot turn them: ``[places]`` booleans.

    What bfloat16 can be off by is measured on Hugging Face's own bfloat16 model: the largest error of the prompt, twice,
    for the best and the second best may move towards each other.
    """
    expected = reference.log_probs(prompt)
    rounded = load_model(folder, dtype=torch.bfloat16)
    with torch.no_grad():
        found = rounded(torch.tensor([prompt]), use_cache=False).logits[0].float().log_softmax(-1)
    error = (found - expected).abs().max()
    best, second = expected.topk(2, dim=-1).values.T
    return expected.argmax(-1), best - second > 2 * error


@pytest.mark.parametrize("eager", [True, pytest.param(False, marks=pytest.mark.full)], ids=["eager", "compiled"])
def test_bfloat16(start: Callable[..., LLM], phi3: Path, phi3_reference: Reference, eager: bool) -> None:
    llm = start(phi3, dtype="bfloat16", enforce_eager=eager)
    token_lists = prompts(LENGTHS)
    outputs = generate(llm, token_lists, greedy(1, prompt_logprobs=1))
    ladder = ladder_from_config(phi3_reference.model.config.to_dict())
    other = {name: Reference(phi3_reference.model, ladder, forced=name) for name in ("short", "long")}
    compared = places = distinct = 0
    for prompt, output in zip(token_lists, outputs, strict=True):
        best, sure = sure_places(phi3, phi3_reference, prompt)
        predicted = [min(entry, key=lambda token: entry[token].rank) for entry in output.prompt_logprobs[1:]]
        predicted.append(output.outputs[0].token_ids[0])
        assert torch.equal(torch.tensor(predicted)[sure], best[sure])
        wrong = other["long" if len(prompt) <= 64 else "short"].log_probs(prompt).argmax(-1)
        distinct += int((wrong != best)[sure].sum())
        compared, places = compared + int(sure.sum()), places + len(prompt)
    # Often enough to mean something, and mostly where the wrong set would have said something else.
    assert compared > places / 10 and distinct > compared / 2, (places, compared, distinct)
