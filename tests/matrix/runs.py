"""The engines and requests of a measurement."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vllm import LLM

from tests.exactness.engines import first_choice, greedy, prompts
from tests.matrix.tiny import TEXT_VOCAB

# Prompts and the tokens after them: short, through both limits, at each limit and one past it, long.
CASES = [(20, 12), (60, 72), (64, 6), (65, 6), (127, 6), (200, 20)]
# The same within the window.
WITHIN = [(20, 12), (40, 20), (50, 14)]

# A prompt, its continuation, and the log-probability of each token of that.
Run = tuple[list[int], list[int], list[float]]


@contextmanager
def engine(arguments: Mapping[str, Any]) -> Iterator[LLM]:
    """An engine in this process, stopped afterwards."""
    llm = LLM(**arguments)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def run(llm: LLM, cases: Sequence[tuple[int, int]]) -> tuple[list[Run], int]:
    """All cases in one batch; and how many prompt tokens came from the prefix cache."""
    token_lists = prompts([length for length, _ in cases], TEXT_VOCAB)
    params = [greedy(count) for _, count in cases]
    outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in token_lists], params, use_tqdm=False)
    runs = [(prompt, *first_choice(output.outputs[0])) for prompt, output in zip(token_lists, outputs, strict=True)]
    return runs, sum(output.num_cached_tokens or 0 for output in outputs)
