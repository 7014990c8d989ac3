"""Ladders that replace each other, and that run side by side, in one engine: every token is its own ladder's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import LLM, SamplingParams

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.model_patches.switch.settings import FORCED_SET, LADDER_ID
from tests.exactness import checkpoints
from tests.exactness.engines import first_choice, greedy, prompts, run
from tests.exactness.reference import Reference
from tests.exactness.test_modes import scheduler_of

Start = Callable[..., LLM]

OLD = ladder_from_config(
    {
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 64,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "rope_parameters": {
            "rope_type": "longrope",
            "short_factor": checkpoints.factors(16, 1.0, 1.3),
            "long_factor": checkpoints.factors(16, 1.1, 9.0),
            "original_max_position_embeddings": 64,
        },
    }
)
assert OLD is not None
SHORT, LONG = OLD.sets
# The first set is that of OLD under another name and with a shorter end; the others are new.
NEW = FactorLadder(
    (
        replace(SHORT, name="near", max_length=48),
        replace(SHORT, name="mid", max_length=96, factors=tuple(checkpoints.factors(16, 1.0, 4.0)), scale=1.1),
        replace(LONG, name="far", factors=tuple(checkpoints.factors(16, 1.3, 15.0)), scale=1.3, start_tokens=8),
    )
)
OTHER = FactorLadder((replace(LONG, name="all", factors=tuple(checkpoints.factors(16, 2.0, 30.0)), scale=0.9),))
LENGTHS = [5, 47, 60, 62, 150, 94, 30, 90]


@pytest.fixture(scope="module")
def references(phi3: Path) -> dict[str, Reference]:
    model = Reference.load(phi3).model
    return {"old": Reference(model, OLD), "new": Reference(model, NEW), "other": Reference(model, OTHER)}


def core_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core


def load(llm: LLM, ladder_id: str, ladder: FactorLadder, name: str = "") -> None:
    assert core_of(llm).load_ladder(ladder_id, name, ladder.to_json()) is None


def use(llm: LLM, ladder_id: str, *, recompute: bool = False) -> list[str]:
    moved: list[str] = core_of(llm).use_ladder(ladder_id, recompute)
    return moved


def asking(ladder_id: str, max_tokens: int = 24, **extra: str) -> SamplingParams:
    return greedy(max_tokens, extra_args={LADDER_ID: ladder_id, **extra})


class Running:
    """Requests that are answered step by step."""

    def __init__(self, llm: LLM) -> None:
        self.engine = llm.llm_engine
        self.answers: dict[str, Any] = {}

    def add(self, name: str, prompt: list[int], params: SamplingParams) -> None:
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def step(self, count: int | None = None) -> None:
        """Make so many steps, or all that are needed."""
        while self.engine.has_unfinished_requests() and count != 0:
            self.answers |= {each.request_id: each.outputs[0] for each in self.engine.step()}
            count = None if count is None else count - 1

    def answer(self, name: str) -> tuple[list[int], list[float]]:
        return first_choice(self.answers[name])


def check(reference: Reference, llm: LLM, params: SamplingParams, lengths: list[int] = LENGTHS, seed: int = 1) -> None:
    token_lists = prompts(lengths, seed=seed)
    for prompt, (tokens, log_probs) in zip(token_lists, run(llm, token_lists, params), strict=True):
        reference.check(prompt, tokens, log_probs)


def check_moved(
    before: Reference, after: Reference, prompt: list[int], answer: tuple[list[int], list[float]], first: range
) -> None:
    """Assert that one ladder gave an answer's tokens before a place in ``first``, and another one those from there on."""
    tokens, log_probs = answer
    faults = []
    for place in first:
        try:
            before.check(prompt, tokens[:place], log_probs[:place])
            after.check(prompt + tokens[:place], tokens[place:], log_probs[place:])
        except AssertionError as error:
            faults.append(f"{place}: {error}")
        else:
            return
    raise AssertionError("\n".join(faults))


def test_requests_finish_in_their_ladder_and_new_ones_take_the_new(
    start: Start, phi3: Path, references: dict[str, Reference]
) -> None:
    llm = start(phi3)
    running, token_lists = Running(llm), prompts(LENGTHS)
    for index, prompt in enumerate(token_lists):
        running.add(f"old-{index}", prompt, greedy(24))
    running.step(6)
    load(llm, "2", NEW)
    assert use(llm, "2") == []
    for index, prompt in enumerate(token_lists):
        running.add(f"new-{index}", prompt, greedy(24))
    running.step()
    for ladder in ("old", "new"):
        for index, prompt in enumerate(token_lists):
            references[ladder].check(prompt, *running.answer(f"{ladder}-{index}"))
    # Back to a ladder that the table still holds, and to the start's.
    check(references["old"], llm, asking("start"), seed=2)
    load(llm, "3", OLD)
    use(llm, "3")
    check(references["old"], llm, greedy(24), seed=3)
    assert len(scheduler_of(llm).ladders.table) == 4


def test_requests_are_recomputed_in_the_new_ladder(start: Start, phi3: Path, references: dict[str, Reference]) -> None:
    """Their tokens so far stay; what follows is what a new request with these tokens as its prompt gives."""
    llm = start(phi3, max_num_batched_tokens=128, enable_prefix_caching=True)
    running, token_lists = Running(llm), prompts(LENGTHS)
    for index, prompt in enumerate(token_lists):
        running.add(str(index), prompt, greedy(40))
    running.add("short", token_lists[0], greedy(40, extra_args={FORCED_SET: "short"}))
    running.step(9)
    load(llm, "2", OTHER)
    counts = {name: len(answer.token_ids) for name, answer in running.answers.items()}
    assert any(counts.values())
    # Their sets' names are unknown there, so they stay where they are.
    moved = use(llm, "2", recompute=True)
    assert len(moved) == len(LENGTHS)
    running.step()
    for index, prompt in enumerate(token_lists):
        count = counts.get(str(index), 0)
        check_moved(references["old"], references["other"], prompt, running.answer(str(index)), range(count, count + 3))
    Reference(references["old"].model, OLD, "short").check(token_lists[0], *running.answer("short"))
    check(references["other"], llm, greedy(8), seed=2)
    # A request that was on its way with the earlier ID.
    check(references["other"], llm, asking("start", 8), seed=2)


def test_requests_of_a_set_that_stays_are_not_recomputed(
    start: Start, phi3: Path, references: dict[str, Reference]
) -> None:
    llm = start(phi3)
    running, [near] = Running(llm), prompts([20])
    running.add("near", near, greedy(60))
    running.step(4)
    load(llm, "2", NEW)
    scheduler = scheduler_of(llm)
    [request] = scheduler.requests.values()
    assert len(use(llm, "2", recompute=True)) == 1
    running.step(2)
    assert (request.num_preemptions, request.rope_ladder.rule.ladder) == (0, NEW)
    running.step()
    # To 48 tokens both ladders are the same; then its new ladder's ends count.
    references["new"].check(near, *running.answer("near"))
    assert request.num_preemptions == 1


def cached(llm: LLM, prompt: list[int], params: SamplingParams) -> int:
    return int(llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0].num_cached_tokens)


def test_blocks_of_a_set_that_stays_are_found_and_no_others(start: Start, phi3: Path) -> None:
    llm = start(phi3, enable_prefix_caching=True)
    short, long = prompts([47, 200], seed=7)
    for prompt, hit in ((short, 32), (long, 192)):
        assert cached(llm, prompt, greedy(1)) == 0
        assert cached(llm, prompt, greedy(1)) == hit
    load(llm, "2", NEW)
    use(llm, "2")
    assert [cached(llm, prompt, greedy(1)) for prompt in (short, long)] == [32, 0]
    assert [cached(llm, prompt, greedy(1)) for prompt in (short, long)] == [32, 192]
    # The set that was replaced is as it was left.
    assert cached(llm, long, asking("start", 1)) == 192


def test_named_ladders_in_one_batch(start: Start, phi3: Path, references: dict[str, Reference]) -> None:
    llm = start(phi3)
    load(llm, "n", NEW, "a")
    load(llm, "o", OTHER, "b")
    use(llm, "n"), use(llm, "o")
    token_lists = prompts(LENGTHS)
    batch = [("old", greedy(24)), ("new", asking("n")), ("other", asking("o"))]
    requests = [(prompt, *each) for prompt in token_lists for each in batch]
    answers = run(llm, [prompt for prompt, *_ in requests], [params for *_, params in requests])
    for (prompt, name, _), (tokens, log_probs) in zip(requests, answers, strict=True):
        references[name].check(prompt, tokens, log_probs)
    forced = Reference(references["new"].model, NEW, "mid")
    check(forced, llm, asking("n", 8, **{FORCED_SET: "mid"}))


def test_a_worker_that_fails_leaves_everything_as_it_was(
    start: Start, phi3: Path, references: dict[str, Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropeswitch.model_patches.switch import rotation_rows

    llm = start(phi3)
    running, [prompt] = Running(llm), prompts([60])
    running.add("one", prompt, greedy(24))
    running.step(4)
    with monkeypatch.context() as broken:
        broken.setattr(rotation_rows, "build_tables", lambda *_: torch.empty(1 << 60))
        assert "worker 0: RuntimeError" in core_of(llm).load_ladder("2", "", NEW.to_json())
    with pytest.raises(FactorError, match="ladder '2': this engine has dropped it"):
        core_of(llm).use_ladder("2", False)
    running.step()
    references["old"].check(prompt, *running.answer("one"))
    check(references["old"], llm, greedy(8), seed=2)
    load(llm, "2", NEW)
    use(llm, "2")
    check(references["new"], llm, greedy(8), seed=2)


def test_a_finished_request_that_a_connector_holds_does_not_move(
    start: Start, phi3: Path, references: dict[str, Reference]
) -> None:
    llm = start(phi3)
    running, [prompt] = Running(llm), prompts([60])
    scheduler = scheduler_of(llm)
    running.add("one", prompt, greedy(8))
    running.step(1)
    [request] = scheduler.requests.values()
    running.step()
    # As on a prefill engine, whose blocks are kept for the decode engine.
    scheduler.requests[request.request_id] = request
    load(llm, "2", NEW)
    assert use(llm, "2", recompute=True) == [] and not scheduler._moving
    del scheduler.requests[request.request_id]
    check(references["new"], llm, greedy(8), seed=2)


def test_parameters_of_a_transfer_that_no_connector_reads_are_left_out(
    start: Start, phi3: Path, references: dict[str, Reference]
) -> None:
    llm = start(phi3)
    [prompt] = prompts([60])
    for value in ([], "", 0):
        Running(llm).add("one", prompt, greedy(4, extra_args={"kv_transfer_params": value}))
        [request] = scheduler_of(llm).requests.values()
        assert request.kv_transfer_params is None
        llm.llm_engine.abort_request([request.request_id], internal=True)
        assert not scheduler_of(llm).requests


def test_rows_are_used_again_and_never_under_a_running_request(
    start: Start, phi3: Path, references: dict[str, Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropeswitch.model_patches.switch import ladders

    monkeypatch.setattr(ladders, "MOST_SETS", 5)
    llm = start(phi3)
    running, [prompt] = Running(llm), prompts([60])
    running.add("one", prompt, greedy(40))
    running.step(4)
    for number in range(12):
        each = replace(OTHER.sets[0], scale=1 + number / 100)
        load(llm, str(number), FactorLadder((each,)))
        use(llm, str(number))
        running.step(1)
    assert len(scheduler_of(llm).ladders.table) == 5
    # Both rows of the request, one of the ladder in use: two are left, and NEW needs two beside the one that it shares.
    too_many = FactorLadder((*NEW.sets, replace(OTHER.sets[0], max_length=600)))
    assert "4 sets do not fit into the engine's table of 5" in core_of(llm).load_ladder("x", "", too_many.to_json())
    load(llm, "2", NEW)
    use(llm, "2")
    token_lists = prompts(LENGTHS, seed=2)
    for index, each in enumerate(token_lists):
        running.add(str(index), each, greedy(8))
    running.step()
    references["old"].check(prompt, *running.answer("one"))
    for index, each in enumerate(token_lists):
        references["new"].check(each, *running.answer(str(index)))
