"""The small reader of queries sees every metric, matcher and grouping, and says what it cannot read."""

import pytest

from tests.deploy.monitoring.promql import Grouping, Query, Selector, parse

A, B = Selector("a", ()), Selector("b:c", (("x", "=~", "y|z, {by}"),))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("a", Query((A,), ())),
        ("1 - rate(a[5m]) > bool 0.5e3", Query((A,), ())),
        ('a and b:c{x=~"y|z, {by}"}', Query((A, B), ())),
        ("sum(rate(a[$__rate_interval])) or vector(0)", Query((A,), ())),
        ("histogram_quantile($quantile, sum by (le, d) (a))", Query((A,), (Grouping(("le", "d"), (A,)),))),
        (
            'max by (p) (a + sum by () (b:c{x=~"y|z, {by}"}[1h])) / a',
            Query((A, B, A), (Grouping(("p",), (A, B)), Grouping((), (B,)))),
        ),
        ('a{p="1", q!="2"}', Query((Selector("a", (("p", "=", "1"), ("q", "!=", "2"))),), ())),
    ],
)
def test_what_a_query_asks_for(query: str, expected: Query) -> None:
    assert parse(query) == expected


@pytest.mark.parametrize(
    "query", ["a / on (x) b", "sum without (x) (a)", "sum(a) by (x)", "sum by (x (a)", "a offset 5m"]
)
def test_what_is_not_read(query: str) -> None:
    with pytest.raises(ValueError, match=r"\(|offset"):
        parse(query)
