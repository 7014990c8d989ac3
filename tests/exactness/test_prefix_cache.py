"""A cached block is found again only by the factor set that rotated its keys."""

from pathlib import Path

from vllm import LLM

from tests.exactness.batches import Start, check_batch
from tests.exactness.engines import first_choice, greedy, prompts, run
from tests.exactness.reference import Reference


def test_cold_and_warm(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    llm = start(phi3, enable_prefix_caching=True)
    check_batch(llm, phi3_reference)
    check_batch(llm, phi3_reference)


def cached_tokens(llm: LLM, prompt: list[int], salt: str | None = None) -> int:
    """Tokens of the prompt that the prefix cache supplied; the answer is checked by the caller."""
    request = {"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {})
    return llm.generate([request], greedy(1), use_tqdm=False)[0].num_cached_tokens


def test_sets_share_no_block(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    """A short and a long request with one prefix, each first once: no hit across sets, hits within one."""
    llm = start(phi3, enable_prefix_caching=True)
    for seed, first in ((11, "short"), (12, "long")):
        (long,) = prompts([160], seed=seed)
        short = long[:64]
        order = [short, long] if first == "short" else [long, short]
        assert [cached_tokens(llm, prompt) for prompt in order] == [0, 0]
        assert cached_tokens(llm, long) >= 128
        assert cached_tokens(llm, short) >= 32
        for prompt in order:
            phi3_reference.check(prompt, *run(llm, [prompt], greedy(10))[0])


def test_a_crossing_leaves_both_sets_cached(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    llm = start(phi3, enable_prefix_caching=True)
    (prompt,) = prompts([60], seed=13)
    tokens, log_probs = run(llm, [prompt], greedy(80))[0]
    phi3_reference.check(prompt, tokens, log_probs)
    # The conversation goes on in the long set and finds the whole history there; an early turn finds the short set's.
    assert cached_tokens(llm, prompt + tokens) >= 96
    assert cached_tokens(llm, prompt) >= 32


def test_a_users_salt_is_kept(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    llm = start(phi3, enable_prefix_caching=True)
    for length in (64, 160):
        (prompt,) = prompts([length], seed=14 + length)
        assert cached_tokens(llm, prompt, "alice") == 0
        assert cached_tokens(llm, prompt, "bob") == 0
        assert cached_tokens(llm, prompt) == 0
        assert cached_tokens(llm, prompt, "alice") > 0
    # Through a switch: the salted history is found with the salt alone.
    (prompt,) = prompts([60], seed=15)
    request = {"prompt_token_ids": prompt, "cache_salt": "alice"}
    tokens, log_probs = first_choice(llm.generate([request], greedy(60), use_tqdm=False)[0].outputs[0])
    phi3_reference.check(prompt, tokens, log_probs)
    assert cached_tokens(llm, prompt + tokens) == 0
    assert cached_tokens(llm, prompt + tokens, "alice") >= 96
