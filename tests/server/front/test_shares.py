"""Shares of a limit: whatever some clients do, another one finds room, and nothing is left when all have ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.server.front.limits.keys import Shares, client_at, digest

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 2000), st.booleans()), max_size=60)


@given(limit=st.integers(1, 2000), weight=st.integers(0, 8), steps=STEPS)
def test_counts_are_those_of_what_clients_hold(limit: int, weight: int, steps: list[tuple[str, int, bool]]) -> None:
    shares = Shares("--flag", limit, weight)
    model: dict[bytes, list[int]] = {name.encode(): [] for name in "abc"}
    for name, amount, begins in steps:
        client = name.encode()
        if begins and amount <= shares.room(client):
            shares.add(client, amount)
            model[client].append(amount)
        elif not begins and model[client]:
            shares.add(client, -model[client].pop())
        held = {each: sum(amounts) for each, amounts in model.items() if amounts}
        assert shares.held == held and shares.total == sum(held.values())
        assert all(amount <= shares.most for amount in held.values())
        assert shares.total <= limit or not weight
    for client, amounts in model.items():
        shares.add(client, -sum(amounts))
    assert not shares.held and shares.total == 0


@given(limit=st.integers(2, 1 << 30), weight=st.integers(1, 8), parts=st.lists(st.integers(1, 1 << 28), max_size=40))
def test_no_client_keeps_another_from_its_first_request(limit: int, weight: int, parts: list[int]) -> None:
    shares = Shares("--flag", limit, weight)
    for amount in parts:
        if amount <= shares.room(b"greedy"):
            shares.add(b"greedy", amount)
    shares.add(b"greedy", shares.room(b"greedy"))
    # What the greedy one left is shared in the same way.
    least = weight * (limit // (weight + 1)) // (weight + 1)
    assert shares.room(b"greedy") == 0 and shares.room(b"other") >= max(1, least)


@given(st.lists(st.sampled_from(range(9)), max_size=60))
def test_every_client_may_begin_while_anything_is_free(clients: list[int]) -> None:
    shares = Shares("--flag", 10, weight=7)
    for client in map(str, clients):
        if shares.room(client.encode()) > 0:
            shares.add(client.encode(), 1)
        elif shares.total < 10:
            assert shares.held[client.encode()]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("unknown", "other", False),
        ("", None, True),
    ],
)
def test_a_machine_is_one_client(one: str, other: str | None, same: bool) -> None:
    assert (client_at(one) == client_at(other)) == same
    assert client_at("192.0.2.1") == digest(b"192.0.2.1")
