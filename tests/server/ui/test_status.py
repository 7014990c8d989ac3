"""The data of the status page, as the route answers it, from metrics that the server's own code has filled."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.settings import RopeSettings
from ropeswitch.server.length_metrics.instruments import GENERATING, WAITING
from ropeswitch.server.length_metrics.metrics import Finished, LengthMetrics, Step
from ropeswitch.server.rope_route import rope_info
from ropeswitch.server.ui import status
from tests.server.length_metrics.ladders import DEFAULT, SEVEN, ladder
from tests.server.length_metrics.test_series import TIMES

SHORT, LONG = "1-256", "257-1024"


@dataclass(frozen=True)
class Shown:
    """An API server process without an engine: its metrics, and its route."""

    metrics: LengthMetrics
    client: TestClient

    def data(self) -> Any:
        answer = self.client.get("/v1/status")
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
        return answer.json()

    def figures(self) -> Any:
        return self.data()["figures"]


def app_of(sets: FactorLadder, registry: CollectorRegistry, metrics: LengthMetrics | None) -> TestClient:
    rope = rope_info(RopeSettings(ladder=sets, theta=10000.0), sets.max_length, [])
    app = FastAPI()
    app.include_router(status.router)
    source = status.StatusSource("m", rope, metrics.plan.bands if metrics else None, registry)
    app.state.ropeswitch = SimpleNamespace(status=source)
    return TestClient(app)


@pytest.fixture
def shown() -> Iterator[Shown]:
    yield server(*DEFAULT)


def server(*ends: int) -> Shown:
    registry = CollectorRegistry()
    metrics = LengthMetrics(ladder(*ends), "m", registry)
    return Shown(metrics, app_of(ladder(*ends), registry, metrics))


def test_the_ladder_in_force(shown: Shown) -> None:
    data = shown.data()
    assert [(each["name"], each["max_length"]) for each in data["sets"]] == [("set0", 256), ("set1", 1024)]
    assert (data["model"], data["policy"], data["angles"], data["max_model_len"]) == ("m", "length", "exact", 1024)
    assert data["vllm_version"] == "0.32.0" and data["version"]


def test_before_any_request_every_band_is_there_and_empty(shown: Shown) -> None:
    figures = shown.figures()
    places = [(each["length_band"], each["factor_set"]) for each in figures["live"]]
    assert places == [(SHORT, "set0"), (LONG, "set1")]
    assert [each["length_band"] for each in figures["latency"]] == [SHORT, LONG]
    nothing = {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None}
    assert all(each["time_to_first_token"] == nothing for each in figures["latency"])
    assert [(each["factor_set"], each["count"], each["stall"]) for each in figures["switches"]] == [
        ("set1", 0, nothing)
    ]
    assert not any(figures["outcomes"].values()) and figures["rejections"] == {}


def test_live_requests_by_band_and_set(shown: Shown) -> None:
    shown.metrics.add_live((0, 0), WAITING, 2)
    shown.metrics.add_live((0, 1), GENERATING, 3)
    shown.metrics.add_live((1, 1), GENERATING, 1)
    assert shown.figures()["live"] == [
        {"length_band": SHORT, "factor_set": "set0", "waiting": 2, "generating": 0},
        {"length_band": SHORT, "factor_set": "set1", "waiting": 0, "generating": 3},
        {"length_band": LONG, "factor_set": "set1", "waiting": 0, "generating": 1},
    ]
    shown.metrics.add_live((0, 1), GENERATING, -3)
    assert [each["factor_set"] for each in shown.figures()["live"]] == ["set0", "set1"]


def test_latencies_of_a_band_are_those_of_all_its_sets_and_engines(shown: Shown) -> None:
    for engine, index in ((0, 0), (1, 0), (0, 1)):
        step = Step(firsts=[((0, index), 0.5, 100, 1)], finished=[Finished((0, index), (0, index), "stop", TIMES)])
        step.later.append(((0, index), [0.05, 0.05], 2))
        shown.metrics.add_step(step, engine)
    short, long = shown.figures()["latency"]
    assert (short["time_to_first_token"]["count"], short["inter_token_latency"]["count"]) == (3, 6)
    assert (short["end_to_end"]["count"], short["end_to_end"]["mean"]) == (3, pytest.approx(3.0))
    assert short["time_to_first_token"]["p99"] == pytest.approx(0.5, rel=0.1)
    assert short["inter_token_latency"]["p50"] == pytest.approx(0.05, rel=0.1)
    assert long["time_to_first_token"]["count"] == long["end_to_end"]["count"] == 0
    assert shown.figures()["outcomes"]["stop"] == 3


def test_switches_and_refusals(shown: Shown) -> None:
    shown.metrics.add_step(Step(switches=[((0, 1), 0.2, 50, 206), ((0, 1), 0.4, 6, 250)]), 0)
    shown.metrics.count_rejection("invalid")
    shown.metrics.count_rejection("prompt_tokens", 2000)
    shown.metrics.count_outside("disconnect")
    figures = shown.figures()
    [switches] = figures["switches"]
    assert (switches["factor_set"], switches["count"]) == ("set1", 2)
    assert (switches["recomputed_tokens"], switches["cached_tokens"]) == (56, 456)
    assert switches["stall"]["count"] == 2 and switches["stall"]["mean"] == pytest.approx(0.3)
    assert figures["rejections"] == {"invalid": 1, "prompt_tokens": 1}
    assert (figures["outcomes"]["rejected"], figures["outcomes"]["disconnect"]) == (2, 1)


def test_what_has_no_series_of_its_own_has_a_row() -> None:
    """Two switches on, where the fine histograms have no room left."""
    shown = server(*SEVEN)
    step = Step()
    step.later.append(((0, 6), [0.05], 1))
    shown.metrics.add_step(step, 0)
    rows = {each["length_band"]: each["inter_token_latency"]["count"] for each in shown.figures()["latency"]}
    assert rows.pop("other") == 1 and not any(rows.values())


def test_where_nothing_is_measured() -> None:
    data = app_of(ladder(*DEFAULT), CollectorRegistry(), None).get("/v1/status").json()
    assert data["figures"] is None and len(data["sets"]) == 2
