"""The fitted model of a step's time, against times that are known."""

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from ropeswitch.model_patches.scheduling.engine import Limits
from ropeswitch.model_patches.scheduling.length_aware import LengthAware
from ropeswitch.model_patches.scheduling.step_cost import STEP, Load, StepCost, chunk

WIDTH = 256
TARGET = 0.2
MEASURED = [(1, 0.004), (2048, 0.2)]


def true_seconds(load: Load) -> float:
    """A machine whose prices are not those that the model assumes at first."""
    prices = (0.003, 0.0005, 0.0001, 3e-8, 3e-7)
    return sum(price * amount for price, amount in zip(prices, load, strict=True))


def steps(seed: int) -> list[Load]:
    """Decodes of several streams, with chunks of a prompt that grows beside them."""
    dice, found, before = random.Random(seed), [], 0
    for _ in range(600):
        load = STEP
        for _ in range(dice.randint(0, 8)):
            load += chunk(1, dice.randint(50, 4000))
        if dice.random() < 0.7:
            tokens = dice.choice([16, 50, 128, 300, 1000])
            load += chunk(tokens, before)
            before = (before + tokens) % 30_000
        if load.tokens:
            found.append(load)
    return found


def learned(seed: int) -> StepCost:
    cost = StepCost(MEASURED, WIDTH)
    for load in steps(seed):
        cost.observe(load, true_seconds(load))
    return cost


def test_it_starts_from_what_was_measured() -> None:
    cost = StepCost(MEASURED, WIDTH)
    for tokens, seconds in MEASURED:
        assert cost.seconds(STEP + chunk(tokens, 0)) == pytest.approx(seconds, rel=0.35)
    # A token costs twice as much where it attends to 6 widths of others.
    before = 6 * WIDTH
    assert cost.seconds(chunk(2048, before)) > 1.5 * cost.seconds(chunk(2048, 0))


def test_it_learns_the_prices() -> None:
    cost = learned(1)
    assert cost.error < 0.02
    for load in steps(2):
        assert cost.seconds(load) == pytest.approx(true_seconds(load), rel=0.15)


@dataclass(eq=False)
class Prompt:
    num_computed_tokens: int
    num_prompt_tokens: int


def test_the_rest_of_a_prompt_is_predicted_at_its_position() -> None:
    """Once enough kinds of steps were measured; attention makes tokens dearer the later they come."""
    engine: Any = SimpleNamespace(placement=lambda _: SimpleNamespace(client=None))
    limits = Limits(8192, 8192, 16, True, 0, 16, 1000, None, False)
    planner = LengthAware(engine, False, lambda: 0.0)
    planner.calibrate(MEASURED, limits, WIDTH, TARGET, None)
    rest: Any = Prompt(20_000, 40_000)
    assert planner.prefill_seconds(rest) is None
    for load in steps(1):
        planner.cost.observe(load, true_seconds(load))
    seconds, before = 0.0, 20_000
    while before < 40_000:
        tokens = min(planner.cost.tokens_within(TARGET - true_seconds(STEP), before), 40_000 - before)
        seconds += true_seconds(STEP + chunk(tokens, before))
        before += tokens
    assert planner.prefill_seconds(rest) == pytest.approx(seconds, rel=0.15)
    later: Any = Prompt(40_000, 40_000)
    assert planner.prefill_seconds(later) == 0


def test_it_follows_a_machine_that_becomes_slower() -> None:
    cost = StepCost(MEASURED, WIDTH)
    for factor in (1, 2):
        for load in steps(3):
            cost.observe(load, factor * true_seconds(load))
    assert cost.error < 0.1
    load = STEP + chunk(128, 20_000)
    assert cost.seconds(load) == pytest.approx(2 * true_seconds(load), rel=0.3)


def test_one_step_that_is_held_up_changes_little() -> None:
    cost = learned(4)
    load = STEP + chunk(128, 20_000)
    before = cost.seconds(load)
    cost.observe(load, 100 * true_seconds(load))
    assert cost.seconds(load) < 3 * before


def test_a_result_that_lay_there_already_changes_little() -> None:
    """Under asynchronous scheduling a late host finds the next step's result at once."""
    cost = learned(4)
    cost.observe(STEP + chunk(8192, 20_000), 0.0002)
    assert cost.tokens_within(0.05, 20_000) < 200 and cost.error < 0.5


def test_no_price_is_negative() -> None:
    cost = StepCost(MEASURED, WIDTH)
    dice = random.Random(5)
    for load in steps(5):
        cost.observe(load, true_seconds(load) * dice.uniform(0.3, 3))
    assert all(cost.seconds(Load(*(float(i == j) for i in range(5)))) >= 0 for j in range(5))


@pytest.mark.parametrize("before", [0, 1000, 100_000, 2_000_000])
@pytest.mark.parametrize("seconds", [0.0001, 0.01, 0.1, 10.0])
def test_tokens_within_is_the_most_that_fits(seconds: float, before: int) -> None:
    cost = learned(6)
    count = cost.tokens_within(seconds, before)
    if count:
        assert cost.seconds(chunk(count, before)) <= seconds * 1.001
    assert cost.seconds(chunk(count + 1, before)) > seconds * 0.999
