"""With sampling, a draft model leaves the distribution of tokens as it is, below the limit, across and above it.

Each sampled token is a draw from what Hugging Face gives for the tokens before it. Counted over many seeded answers, tokens
come as often as the sum of those probabilities says; a chi-square bounds the difference.
"""

from pathlib import Path

import pytest
import torch
from vllm import SamplingParams

from tests.exactness.acceptance import watch
from tests.exactness.batches import Start
from tests.exactness.draft_models import WINDOW, draft_model
from tests.exactness.engines import prompts, scheduler_of
from tests.exactness.reference import Reference

VOCABULARY, PROMPT, ANSWER, ANSWERS = 16, 57, 16, 200
# Of a chi-square with as many degrees of freedom as there are tokens, one in 10,000 is larger.
LARGEST = 44.3


class Frequencies:
    """How often tokens came, and how often they should have."""

    def __init__(self) -> None:
        self.found, self.expected, self.variance = (torch.zeros(VOCABULARY, dtype=torch.float64) for _ in range(3))

    def add(self, token: int, probabilities: torch.Tensor) -> None:
        self.found[token] += 1
        self.expected += probabilities
        self.variance += probabilities * (1 - probabilities)

    @property
    def chi_square(self) -> float:
        return float(((self.found - self.expected).square() / self.variance).sum())


@pytest.mark.full
@pytest.mark.parametrize("drawn", ["greedy", "probabilistic"])
def test_the_distribution_is_the_targets(start: Start, tmp_path: Path, drawn: str) -> None:
    pair = draft_model(tmp_path, noise=0.15, vocab_size=VOCABULARY)
    speculative = pair.speculative | {"num_speculative_tokens": 3, "draft_sample_method": drawn}
    llm = start(pair.target, speculative_config=speculative)
    counts = watch(scheduler_of(llm))
    reference = Reference.load(pair.reference)
    (prompt,) = prompts([PROMPT], vocabulary=VOCABULARY)
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
        for seed in range(ANSWERS)
    ]
    outputs = llm.generate([{"prompt_token_ids": prompt}] * ANSWERS, params, use_tqdm=False)
    by_set = {0: Frequencies(), 1: Frequencies()}
    for output in outputs:
        answer = list(output.outputs[0].token_ids)
        assert len(answer) == ANSWER
        # Up to the limit one forward has every row; beyond it the whole sequence is in the long set.
        rows = {0: reference.log_probs((prompt + answer)[:WINDOW]), 1: reference.log_probs(prompt + answer)}
        for place, token in enumerate(answer, start=PROMPT):
            index = int(place > WINDOW)
            by_set[index].add(token, rows[index][place - 1].double().exp())
    for index, frequencies in by_set.items():
        assert frequencies.chi_square < LARGEST, (index, frequencies.found, frequencies.expected)
        # Some drafts are taken and some are replaced, or nothing was tested.
        assert 0.05 < counts.by_set[index].share < 0.95, counts.by_set
