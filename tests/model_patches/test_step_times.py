"""Which warm-up steps the engine times for its scheduler."""

import pytest

from ropeswitch.model_patches.scheduling.step_times import ENOUGH_SECONDS, FIRST_TOKENS, SAME_TOKENS, measure


class Steps:
    """An engine whose steps take a fixed time and one per token; every other one is held up."""

    def __init__(self, fixed: float, token: float) -> None:
        self._fixed, self._token = fixed, token
        self.ran: list[int] = []

    def __call__(self, tokens: int) -> float:
        self.ran.append(tokens)
        return self._fixed + self._token * tokens + (0.5 * self._fixed if len(self.ran) % 2 else 0.0)


def test_longer_steps_are_tried_until_one_takes_long_enough() -> None:
    steps = Steps(0.001, 0.0005)
    (one, shortest), (tokens, seconds) = measure(steps, 8192, together=False)
    assert one == 1 and shortest == pytest.approx(0.0015)
    assert seconds >= ENOUGH_SECONDS and tokens == 512
    assert steps.ran[-4:] == [FIRST_TOKENS, 128, 256, 512]


def test_no_step_is_longer_than_the_engine_allows() -> None:
    assert measure(Steps(0.001, 1e-9), 100, together=False)[1][0] == 100


def test_engines_that_wait_for_each_other_try_the_same_steps() -> None:
    fast, slow = Steps(0.001, 1e-6), Steps(0.001, 1.0)
    measure(fast, 8192, together=True), measure(slow, 8192, together=True)
    assert fast.ran == slow.ran and fast.ran[-1] == SAME_TOKENS
