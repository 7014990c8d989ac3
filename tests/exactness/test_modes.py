"""Greedy tokens and log-probabilities equal the reference's in every mode of the engine, crossings included."""

from pathlib import Path

import pytest
from vllm import SamplingParams

from tests.exactness import checkpoints
from tests.exactness.batches import LENGTHS, SMALL, Start, check_aborting, check_batch
from tests.exactness.engines import first_choice, generate, greedy, preemptions, prompts, run, scheduler_of
from tests.exactness.reference import Reference


def test_eager_mixed_batch_leaks_no_block(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    llm = start(phi3)
    pool = scheduler_of(llm).kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    check_batch(llm, phi3_reference)
    assert pool.get_num_free_blocks() == free
    # Step for step in another order, one request at a time: nothing depends on what shares the batch.
    for prompt in prompts(LENGTHS[:4], seed=2):
        phi3_reference.check(prompt, *run(llm, [prompt], greedy(8))[0])


def test_compiled(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    check_batch(start(phi3, enforce_eager=False), phi3_reference)


def test_chunked_prefill(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    check_batch(start(phi3, max_num_batched_tokens=48), phi3_reference)


def test_prefix_caching_off(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    check_batch(start(phi3, enable_prefix_caching=False), phi3_reference)


def test_preemption(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    # Room for about 17 blocks of 32 tokens, of which the batch needs more than 40.
    llm = start(phi3, **SMALL)
    preempted = preemptions(scheduler_of(llm))
    check_batch(llm, phi3_reference, max_tokens=90)
    # Some requests more often than their one switch: the answers really outgrew the cache, into which the prompts fit.
    assert len(preempted) > len({request.request_id for request in preempted})


def test_prompt_log_probabilities(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    llm = start(phi3, max_num_batched_tokens=48)
    token_lists = prompts([20, 64, 65, 140])
    outputs = generate(llm, token_lists, greedy(6, prompt_logprobs=0))
    for prompt, output in zip(token_lists, outputs, strict=True):
        expected = phi3_reference.log_probs(prompt)
        for place in range(1, len(prompt)):
            found = output.prompt_logprobs[place][prompt[place]].logprob
            assert abs(found - float(expected[place - 1][prompt[place]])) < 1e-3
        phi3_reference.check(prompt, *first_choice(output.outputs[0]))


def test_several_choices(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    llm = start(phi3)
    token_lists = prompts([50, 63, 90])
    params = SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=24, ignore_eos=True, logprobs=0, detokenize=False)
    for prompt, output in zip(token_lists, generate(llm, token_lists, params), strict=True):
        assert len({tuple(choice.token_ids) for choice in output.outputs}) == 3
        for choice in output.outputs:
            sequence = list(prompt)
            for token, log_prob in zip(*first_choice(choice), strict=True):
                assert abs(log_prob - float(phi3_reference.log_probs(sequence)[-1][token])) < 1e-3
                sequence.append(token)


def test_priority_scheduling(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    llm = start(phi3, scheduling_policy="priority", max_num_seqs=3, **SMALL)
    token_lists = prompts(LENGTHS)
    outputs = generate(llm, token_lists, greedy(24), priority=[i % 3 for i in range(len(token_lists))])
    for prompt, output in zip(token_lists, outputs, strict=True):
        phi3_reference.check(prompt, *first_choice(output.outputs[0]))


def test_forced_sets(start: Start, phi3: Path) -> None:
    """A set asked for by name serves the request at every length, beside requests that switch."""
    llm = start(phi3)
    ladder = scheduler_of(llm).ladder.sets
    token_lists = prompts([30, 60, 100]) * 2
    names = ["short"] * 3 + ["long"] * 3
    params = [greedy(12, extra_args={"rope_factor_set": name}) for name in names]
    references = {name: Reference.load(phi3, ladder, forced=name) for name in ("short", "long")}
    for prompt, name, (tokens, log_probs) in zip(token_lists, names, run(llm, token_lists, params), strict=True):
        references[name].check(prompt, tokens, log_probs)


def test_streamed_steps_deliver_every_token_once_through_aborts(
    start: Start, phi3: Path, phi3_reference: Reference
) -> None:
    """Requests aborted in the step in which they outgrow their set disturb no other."""
    llm = start(phi3)
    scheduler = scheduler_of(llm)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    # An asynchronous engine may have planned its next step within this one, and then they wait already.
    aborted = check_aborting(
        llm, phi3_reference, prompts([62, 61, 63, 60, 40, 64]), 20,
        lambda request: request.num_tokens > scheduler.ladder.end(0),
    )  # fmt: skip
    assert aborted == {"0", "2"}
    llm.llm_engine.step()
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    assert not scheduler.requests


@pytest.mark.parametrize("angles", ["exact", "hf"])
def test_long_positions(start: Start, tmp_path: Path, angles: str) -> None:
    """At positions near 8k, float32 angles are off by 1e-3: the hf mode agrees with Hugging Face, exact with float64."""
    folder = checkpoints.phi3(tmp_path, window=8192, maximum=16384, num_attention_heads=2, hidden_size=64)
    llm = start(folder, angles=angles, max_num_batched_tokens=4096, max_num_seqs=4)
    reference = Reference.load(folder, None if angles == "hf" else scheduler_of(llm).ladder.sets)
    reference.model.set_attn_implementation("sdpa")
    check_batch(llm, reference, [8190, 100], max_tokens=5)
