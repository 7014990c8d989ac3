"""The data of the status page, as the route answers it, from metrics that the server's own code has filled."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.placement import Placement
from ropeswitch.server.app.routes import rope_info
from ropeswitch.server.metrics.instruments import GENERATING, WAITING
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.track import Track
from ropeswitch.server.ui import status
from ropeswitch.server.ui.running import MOST, RunningSequences
from tests.server.metrics.ladders import DEFAULT, SEVEN, ladder
from tests.server.metrics.test_series import TIMES

SHORT, LONG = "1-256", "257-1024"


class Engine:
    """The sequences of an output processor, and what an engine answers of their prompts once it may."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        self.computed: dict[str, int] = {}
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: list[list[str]] = []

    async def __call__(self, request_ids: list[str]) -> dict[str, int]:
        self.asked.append(request_ids)
        await self.answers.wait()
        return self.computed

    def add(self, name: str, prompt: int, generated: int = 0, factor_set: int = 0) -> None:
        stats = SimpleNamespace(num_generation_tokens=generated)
        state = SimpleNamespace(external_req_id=name, prompt_len=prompt, lora_name=None, stats=stats)
        track = Track(Placement(0, "", ""), state, number=len(self.states) + 1, band_set=(0, factor_set))
        track.live = track.band_set, GENERATING if generated else WAITING
        state.ropeswitch = track
        self.states[name] = state


@pytest.fixture(autouse=True)
def each_reading_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SHARED_SECONDS", 0.0)


class Shown:
    """An API server process without an engine: its metrics, and its route."""

    def __init__(self, *ends: int, measures: bool = True) -> None:
        registry, sets, self.engine = CollectorRegistry(), ladder(*ends), Engine()
        self.metrics = LengthMetrics(sets, "m", registry)
        running = RunningSequences(self.engine.states, sets.names, self.engine)
        model = SimpleNamespace(max_model_len=sets.max_length, dtype="float32")
        rope = rope_info(RopeSettings(ladder=sets, theta=10000.0), model)
        app = FastAPI()
        app.include_router(status.router)
        app.state.ropeswitch = SimpleNamespace(
            status=status.StatusSource("m", rope, registry, self.metrics if measures else None, running)
        )
        self.client = TestClient(app)

    def data(self) -> Any:
        answer = self.client.get("/v1/status")
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
        return answer.json()

    def figures(self, part: str) -> Any:
        return self.data()["figures"][part]


@pytest.fixture
def shown() -> Shown:
    return Shown(*DEFAULT)


def test_before_any_request_the_ladder_and_every_band_are_there_and_empty(shown: Shown) -> None:
    data = shown.data()
    assert [(each["name"], each["max_length"]) for each in data["sets"]] == [("set0", 256), ("set1", 1024)]
    assert (data["model"], data["policy"], data["angles"], data["max_model_len"]) == ("m", "length", "exact", 1024)
    figures = data["figures"]
    assert [each["length_band"] for each in figures["latency"]] == [SHORT, LONG]
    nothing = {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None}
    assert all(each["time_to_first_token"] == nothing for each in figures["latency"])
    assert [(each["factor_set"], each["count"]) for each in figures["switches"]] == [("set1", 0)]
    assert not any(figures["outcomes"].values()) and figures["rejections"] == {}
    unmeasured = Shown(*DEFAULT, measures=False).data()
    assert unmeasured["figures"] is None and unmeasured["sets"] == data["sets"]


def test_live_requests_by_band_and_set(shown: Shown) -> None:
    def live() -> list[tuple[Any, ...]]:
        return [tuple(each.values()) for each in shown.figures("live")]

    shown.metrics.add_live((0, 0), WAITING, 2)
    shown.metrics.add_live((0, 1), GENERATING, 3)
    assert live() == [(SHORT, "set0", 2, 0), (SHORT, "set1", 0, 3), (LONG, "set1", 0, 0)]
    shown.metrics.add_live((0, 1), GENERATING, -3)
    assert live() == [(SHORT, "set0", 2, 0), (LONG, "set1", 0, 0)]


def test_latencies_of_a_band_are_those_of_all_its_sets_and_engines(shown: Shown) -> None:
    for engine, index in ((0, 0), (1, 0), (0, 1)):
        shown.metrics.add_first(engine, (0, index), 0.5, 100, 1, "length")
        shown.metrics.add_later(engine, (0, index), [0.05, 0.05], 2)
        shown.metrics.add_ended(engine, (0, index), (0, index), "stop", TIMES)
    short, long = shown.figures("latency")
    names = ("time_to_first_token", "inter_token_latency", "end_to_end")
    assert [short[name]["count"] for name in names] == [3, 6, 3]
    assert [short[name]["mean"] for name in names] == pytest.approx([0.5, 0.05, 3.0])
    assert [short[name]["p99"] for name in names] == pytest.approx([0.5, 0.05, 3.0], rel=0.1)
    assert not any(long[name]["count"] for name in names)
    assert shown.figures("outcomes")["stop"] == 3
    # Two switches on, where the fine histograms have no room left, there is a row for all.
    shown = Shown(*SEVEN)
    shown.metrics.add_later(0, (0, 6), [0.05], 1)
    rows = {each["length_band"]: each["inter_token_latency"]["count"] for each in shown.figures("latency")}
    assert rows.pop("other") == 1 and not any(rows.values())


def test_switches_and_refusals(shown: Shown) -> None:
    for _ in range(49):
        shown.metrics.add_switch(0, (0, 1), 0.3, 1, 1)
    shown.metrics.add_switch(0, (0, 1), 0.2, 50, 206)
    shown.metrics.add_switch(0, (0, 1), 0.4, 6, 250)
    shown.metrics.count_rejection("invalid")
    shown.metrics.count_rejection("prompt_tokens", 2000)
    shown.metrics.count_outside("disconnect")
    [switches] = shown.figures("switches")
    assert (switches["factor_set"], switches["count"], switches["stall"]["mean"]) == ("set1", 51, pytest.approx(0.3))
    assert (switches["recomputed_tokens"], switches["cached_tokens"]) == (105, 505)
    newest, older, *others = shown.figures("events")
    names = ("length_band", "factor_set", "recomputed_tokens", "cached_tokens", "stall")
    assert [newest[name] for name in names] == [SHORT, "set1", 6, 250, 0.4]
    assert older["recomputed_tokens"] == 50 and 0 <= newest["seconds_ago"] <= older["seconds_ago"]
    assert len(others) == 48
    assert shown.figures("rejections") == {"invalid": 1, "prompt_tokens": 1}
    outcomes = shown.figures("outcomes")
    assert (outcomes["rejected"], outcomes["disconnect"]) == (2, 1)


def test_each_sequence_in_flight(shown: Shown) -> None:
    shown.engine.add("queued", 100)
    shown.engine.add("prefilling", 200)
    shown.engine.add("decoding", 250, generated=60, factor_set=1)
    shown.engine.computed = {"queued": 0, "prefilling": 64}
    names = ("number", "prompt_tokens", "tokens", "factor_set", "state", "computed_tokens")
    assert [tuple(each[name] for name in names) for each in shown.figures("running")] == [
        (1, 100, 100, "set0", "queued", 0),
        (2, 200, 200, "set0", "prefilling", 64),
        (3, 250, 310, "set1", "decoding", 250),
    ]
    assert shown.engine.asked == [["queued", "prefilling"]]


def test_viewers_share_a_reading_that_lists_the_oldest_of_too_many(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "SHARED_SECONDS", 60.0)
    for number in range(MOST + 10):
        shown.engine.add(str(number), 100, generated=1)
    before = shown.data()
    figures = before["figures"]
    assert [each["number"] for each in figures["running"]] == list(range(1, MOST + 1))
    assert (figures["running_total"], figures["processes"]) == (MOST + 10, "one")
    assert shown.engine.asked == []
    shown.metrics.count_rejection("invalid")
    assert shown.data() == before


def test_a_late_answer_of_the_engine_counts_for_the_next_reading() -> None:
    """And no second question is asked while one is under way."""

    async def run() -> None:
        engine = Engine()
        engine.add("waiting", 100)
        engine.computed = {"waiting": 60}
        engine.answers.clear()
        running = RunningSequences(engine.states, ["set0"], engine)
        for _ in range(2):
            assert [(each.state, each.computed_tokens) for each in await running.read()] == [("queued", None)]
        assert len(engine.asked) == 1
        engine.answers.set()
        assert [each.computed_tokens for each in await running.read()] == [60]
        engine.states["waiting"].ropeswitch.live = None
        assert await running.read() == [] and running.total == 1

    asyncio.run(run())
