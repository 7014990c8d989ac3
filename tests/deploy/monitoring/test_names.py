"""Dashboards and alerts ask for what the server exposes: metrics, labels and values of labels."""

import pytest

from tests.deploy.monitoring.exposed import TARGET_LABELS, VALUES, Series, ours, vllm
from tests.deploy.monitoring.files import SCOPE, Asked, alert_queries, board_queries, rules
from tests.deploy.monitoring.promql import parse


@pytest.fixture(scope="module")
def known() -> Series:
    series = ours() | vllm() | {"up": frozenset()}
    for rule in rules():
        if "record" in rule:
            [grouping] = parse(rule["expr"]).groupings
            series[rule["record"]] = frozenset(grouping.labels) - {"le"} - TARGET_LABELS
    return series


def test_names_of_both_are_read(known: Series) -> None:
    assert known["ropeswitch_live_requests"] == {"model_name", "input_sequence_length", "factor_set", "state"}
    assert known["ropeswitch_switch_stall_seconds_bucket"] >= {"le", "engine"}
    assert known["vllm:num_preemptions_total"] == known["vllm:kv_cache_usage_perc"] == {"model_name", "engine"}
    assert known["vllm:request_success_total"] == {"model_name", "engine", "finished_reason"}
    assert "vllm:iteration_tokens_total_bucket" in known and "vllm:num_preemptions" not in known


@pytest.mark.parametrize("asked", board_queries() + alert_queries(), ids=lambda asked: asked.where)
def test_a_query_asks_for_what_there_is(asked: Asked, known: Series) -> None:
    query = parse(asked.query)
    assert query.selectors
    for selector in query.selectors:
        assert selector.name in known
        for label, operator, value in selector.matchers:
            assert label in known[selector.name] | TARGET_LABELS
            if (selector.name, label) in VALUES:
                values = {value} if operator in ("=", "!=") else set(value.split("|"))
                assert values <= VALUES[selector.name, label]
    for grouping in query.groupings:
        for selector in grouping.of:
            assert set(grouping.labels) <= known[selector.name] | TARGET_LABELS
        assert asked.shown <= set(grouping.labels)
    assert query.groupings or not asked.shown


@pytest.mark.parametrize("asked", alert_queries(), ids=lambda asked: asked.where)
def test_alerts_look_at_ropeswitch_only(asked: Asked) -> None:
    assert asked.query.count(SCOPE) == len(parse(asked.query).selectors)


@pytest.mark.parametrize("asked", board_queries(), ids=lambda asked: asked.where)
def test_dashboards_look_at_the_chosen_servers_only(asked: Asked) -> None:
    chosen = [("namespace", "=~", "$namespace"), ("job", "=~", "$job")]
    # These two are chosen first, one after the other.
    needed = {"$namespace": [], "$job": chosen[:1]}.get(asked.where.rpartition(" ")[2], chosen)
    for selector in parse(asked.query).selectors:
        assert set(needed) <= set(selector.matchers)
