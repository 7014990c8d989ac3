"""What a run was doing at each moment, against counts made the slow way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.loadtests.client.records import Exchange
from ropeswitch.loadtests.report.series import bins, changes, chunk_times, crosses, end, output_rate, prompt_rate, tpot
from tests.loadtests.report.made_up import exchange, failure

EXCHANGES = st.lists(
    st.builds(
        exchange,
        st.integers(0, 99),
        prompt=st.integers(1, 100_000),
        sent=st.floats(0, 20),
        output_tokens=st.integers(1, 60),
    ),
    max_size=8,
)


@given(EXCHANGES, st.lists(st.floats(-1, 40), max_size=20))
def test_a_request_is_in_flight_from_its_sending_until_its_end(exchanges: list[Exchange], moments: list[float]) -> None:
    counted = [sum(e.sent <= at < end(e) for e in exchanges) for at in moments]
    times, numbers = changes((e.sent, end(e)) for e in exchanges)
    found = np.concatenate([[0.0], numbers])[np.searchsorted(times, np.array(moments), side="right")]
    assert list(found) == counted


@given(EXCHANGES)
def test_rates_add_up_to_all_tokens(exchanges: list[Exchange]) -> None:
    edges = bins(max([end(e) for e in exchanges], default=1.0) + 1e-6)
    widths = np.diff(edges)
    assert sum(output_rate(exchanges, edges) * widths) == pytest.approx(sum(e.output_tokens for e in exchanges))
    assert sum(prompt_rate(exchanges, edges) * widths) == pytest.approx(sum(e.prompt_tokens for e in exchanges))


def test_output_tokens_are_counted_when_their_chunk_came() -> None:
    slow = exchange(0, sent=1.0, ttft=0.5, itl=(2.0, 4.0), latency=6.5, output_tokens=6)
    assert list(chunk_times(slow)) == [1.5, 3.5, 7.5]
    assert list(output_rate([slow], np.array([0.0, 2.0, 4.0, 8.0]))) == [1.0, 1.0, 0.5]


def test_prompt_tokens_are_spread_until_the_first_token() -> None:
    prompt = exchange(0, 1000, sent=1.0, ttft=2.0, itl=(), latency=2.0)
    assert list(prompt_rate([prompt], np.array([0.0, 1.0, 2.0, 3.0, 4.0]))) == [0.0, 500.0, 500.0, 0.0]


def test_an_answer_that_was_not_streamed_came_at_its_end() -> None:
    whole = exchange(0, sent=1.0, ttft=None, itl=(), latency=3.0, streamed=False, output_tokens=8)
    assert list(chunk_times(whole)) == [4.0]
    assert list(chunk_times(failure(0, "gone"))) == []


@pytest.mark.parametrize(
    ("prompt", "output", "outgrown"),
    # Tokens 301 to 319 are computed, the 320th is not.
    [(300, 20, True), (290, 23, True), (290, 22, True), (290, 21, False), (310, 20, True), (311, 20, False)],
)
def test_a_sequence_outgrows_its_set_with_a_computed_token_over_the_limit(
    prompt: int, output: int, outgrown: bool
) -> None:
    assert crosses(exchange(0, prompt, output_tokens=output), [310, 100_000]) is outgrown


def test_the_servers_count_of_the_prompt_says_whether_it_outgrew_its_set() -> None:
    assert not crosses(exchange(0, 305, counted_prompt_tokens=320), [310])
    assert crosses(exchange(0, 320, counted_prompt_tokens=305), [310])


def test_time_per_output_token_leaves_the_first_out() -> None:
    assert tpot(exchange(0, ttft=1.0, latency=3.0, output_tokens=5)) == 0.5
    assert tpot(exchange(0, ttft=1.0, latency=1.0, output_tokens=1)) == 0.0
    assert tpot(exchange(0, ttft=None)) is None
