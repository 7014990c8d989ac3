"""The report's figures: that they are SVG which goes into a page, and show what there is or say what there is not."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from ropeswitch.loadtests.client.assertions import Slo
from ropeswitch.loadtests.client.bands import DEFAULT, bands
from ropeswitch.loadtests.client.records import Exchange, Point
from ropeswitch.loadtests.report import plot_style, plots
from ropeswitch.loadtests.report.plot_server import server
from ropeswitch.loadtests.report.plot_sweep import sweep, throughput
from ropeswitch.loadtests.report.plot_times import timeline
from tests.loadtests.report.made_up import BANDS, exchange, failure, point, results, run

SVG = "{http://www.w3.org/2000/svg}"
POINT = point()
NAMES = [str(band) for band in BANDS]


@pytest.fixture(autouse=True)
def unplaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time goes into finding room for every label, which the tests of the page do."""
    monkeypatch.setattr(plot_style, "figure", lambda width, height: Figure(figsize=(width, height)))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that become SVG while the test runs."""
    figures: list[Figure] = []
    written = plot_style.svg

    def kept(figure: Figure, name: str, title: str) -> str:
        figures.append(figure)
        return written(figure, name, title)

    monkeypatch.setattr(plot_style, "svg", kept)
    return figures


def texts(svg: str) -> list[str]:
    """What an SVG says; it must be well formed, and leave no colour that the page was to set."""
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert not [paint for paint in plot_style.PAINTS if paint in svg]
    return ["".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")]


def alone(exchanges: Sequence[Exchange], **changed: Any) -> Point:
    return Point("alone", None, (run("target", exchanges, **changed),))


def test_latency_shows_every_band_and_the_percentiles_of_the_results(drawn: list[Figure]) -> None:
    result = results([POINT])["points"][0]
    labels = texts(plots.latency("latency", result))
    assert {*NAMES, *plots.LATENCIES.values(), "p50", "p90", "p99", "target", "baseline"} <= set(labels)
    places = sorted(float(line.get_ydata()[0]) for line in drawn[0].axes[0].lines if len(line.get_ydata()) == 1)
    sides = (result["target"], result["baseline"])
    values = [side["bands"][name][f"{part}_ttft_ms"] for side in sides for name in NAMES for part in plots.PERCENTILES]
    assert places == pytest.approx(sorted(value / 1000 for value in values))


def test_distributions_are_drawn_by_band_and_server(drawn: list[Figure]) -> None:
    labels = texts(plots.distributions("distributions", POINT, BANDS))
    assert {*NAMES, "target", "baseline"} <= set(labels)
    styles = [(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines]
    colours = plot_style.band_colours(BANDS)
    assert sorted(styles) == sorted((colours[band], style) for band in BANDS for style in ("-", "--"))


def test_goodput_shows_the_shares_of_each_objective() -> None:
    slos = [Slo.parse("band=0-8k,ttft<0.1,tpot<0.1"), Slo.parse("e2el<0.01")]
    found = texts(
        plots.goodput("goodput", results([POINT], slo=[s.text for s in slos])["points"][0], POINT, slos, BANDS)
    )
    # Of the target's prompts of up to 8k two of three are that fast, of the baseline's one; all are fast by the token.
    assert [text for text in found if re.fullmatch(r"\d+%", text) and text in ("67%", "33%")] == ["67%", "33%"]
    titles = [
        "Within all objectives",
        *(f"{plots.LATENCIES[key]} within its objective" for key in ("ttft", "tpot", "e2el")),
    ]
    assert set(titles) <= set(found)


def test_an_objective_is_kept_at_its_bound_as_in_the_results() -> None:
    slos = [Slo.parse("ttft<0.5")]
    found = alone([exchange(0, ttft=0.5), exchange(1, ttft=0.51)])
    result = results([found], slo=["ttft<0.5"])["points"][0]
    assert texts(plots.goodput("goodput", result, found, slos, BANDS)).count("50%") == 4


def test_lengths_show_where_sets_end_among_the_prompts() -> None:
    labels = texts(plots.by_length("lengths", POINT, (16, 8192, 262144, 2**21)))
    assert [text for text in labels if text.startswith("set ends")] == ["set ends at 8k", "set ends at 256k"]


def test_many_points_are_drawn_as_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    few = alone([exchange(i, sent=i) for i in range(8)])
    plain = plots.by_length("lengths", few, ()) + timeline("timeline", few.runs, BANDS, {})
    assert "<image" not in plain + plots.distributions("distributions", few, BANDS)
    monkeypatch.setattr(plot_style, "DENSE", 6)
    assert "<image" in plots.by_length("lengths", few, ())
    assert "<image" in plots.distributions("distributions", few, BANDS)
    assert "<image" in timeline("timeline", few.runs, BANDS, {})


def test_the_time_line_marks_failures_and_requests_that_outgrew_their_set(drawn: list[Figure]) -> None:
    fine, failed, grown = exchange(0), failure(1, "gone", sent=2.0), exchange(2, prompt=8190, sent=4.0)
    labels = texts(timeline("timeline", [run("target", [fine, failed, grown])], BANDS, {"target": (8192,)}))
    assert {"0-8k", "failed", "outgrew its factor set", "target: requests, in the order of sending"} <= set(labels)
    crosses, diamonds = drawn[0].axes[0].lines
    assert list(crosses.get_xdata()) == [2.5]
    assert list(diamonds.get_ydata()) == [2]
    labels = texts(timeline("timeline", [run("target", [fine])], BANDS, {"target": (8192,)}))
    assert not {"failed", "outgrew its factor set", "8k-128k"} & set(labels)
    labels = texts(timeline("timeline", [run("baseline", [grown])], BANDS, {"target": (8192,)}))
    assert "outgrew its factor set" not in labels


def test_the_time_line_shows_how_late_requests_were_sent(drawn: list[Figure]) -> None:
    timeline("timeline", [run("target", [exchange(0, sent=1.0, due=0.75), exchange(1, sent=2.0, due=2.0)])], BANDS, {})
    assert drawn[0].axes[4].collections[0].get_offsets().tolist() == [[1.0, 0.25], [2.0, 0.0]]


def test_counts_reach_above_the_highest_of_both_servers(drawn: list[Figure]) -> None:
    runs = (run("target", [exchange(0)]), run("baseline", [exchange(i, sent=i / 1000) for i in range(6)]))
    timeline("timeline", runs, BANDS, {})
    for flight in drawn[0].axes[4:6]:
        assert 6 < flight.get_ylim()[1] < 7


def test_throughput_is_that_of_the_first_run(drawn: list[Figure]) -> None:
    texts(throughput("throughput", POINT))
    for axes, tokens in zip(
        drawn[0].axes, (20, 20 + sum((300, 1_000, 4_000, 20_000, 100_000, 900_000)) / 6), strict=True
    ):
        values, edges, _ = axes.patches[0].get_data()
        assert sum(values * np.diff(edges)) == pytest.approx(24 * tokens)


def test_a_sweep_shows_every_rate_and_both_servers(drawn: list[Figure]) -> None:
    points = results([point(f"{rate} requests/s", rate) for rate in (4, 0.5)], slo=["ttft<1"])["points"]
    labels = texts(sweep("sweep", points, BANDS))
    assert {"0.5", "4", "target", "baseline", *NAMES, "Goodput, requests/s"} <= set(labels)
    output, _, tails, _ = drawn[0].axes
    assert [list(line.get_xdata()) for line in output.lines] == [[0.5, 4], [0.5, 4]]
    assert output.lines[0].get_ydata()[1] == points[0]["target"]["output_throughput"]
    assert len(tails.lines) == 2 * len(BANDS)


def test_points_without_a_rate_are_shown_by_their_labels() -> None:
    labels = texts(sweep("sweep", results([point("2 at a time"), point("a $8$ time")])["points"], BANDS))
    assert {"2 at a time", "a $8$ time", "Requests/s"} <= set(labels)


def test_the_servers_metrics_are_shown_beside_the_clients(drawn: list[Figure]) -> None:
    labels = texts(server("server", POINT.runs[0]))
    assert {"running", "waiting", "queued by ropeswitch", "in flight at the client", "by the server's counter"} <= set(
        labels
    )
    requests, cache, tokens, switches = drawn[0].axes
    assert requests.lines[1].get_ydata()[0] == 3
    assert max(cache.lines[0].get_ydata()) == 0.4
    assert list(switches.lines[0].get_ydata())[-1] == 4
    values, edges, _ = tokens.patches[1].get_data()
    assert sum(values * np.diff(edges)) == pytest.approx(20 * 24)


def test_a_metric_that_the_server_lacks_is_named() -> None:
    samples = tuple(replace(s, values={"vllm:num_requests_running": 1.0}) for s in POINT.runs[0].samples)
    labels = texts(server("server", replace(POINT.runs[0], samples=samples)))
    lacking = ("vllm:kv_cache_usage_perc", "vllm:generation_tokens_total", "ropeswitch_switches_total")
    assert {f"the server has no {name}" for name in lacking} <= set(labels)


NOT_STREAMED = exchange(0, ttft=None, itl=(), streamed=False)


@pytest.mark.parametrize(
    "exchanges", [[], [failure(0, "gone")], [NOT_STREAMED]], ids=["none", "failed", "not streamed"]
)
def test_nothing_to_show_is_said(exchanges: list[Exchange]) -> None:
    found = alone(exchanges)
    result = results([found], slo=["ttft<1"])["points"][0]
    assert "no request has one" in texts(plots.latency("latency", result))
    assert texts(plots.distributions("distributions", found, BANDS)).count("no request has one") == 2
    assert "no request has a first token" in texts(plots.by_length("lengths", found, (8192,)))
    assert "Within all objectives" in texts(plots.goodput("goodput", result, found, [Slo.parse("ttft<1")], BANDS))
    assert "no request has one" in texts(sweep("sweep", [result], BANDS))
    assert "Output tokens/s" in texts(throughput("throughput", found))
    assert "Requests in flight" in texts(timeline("timeline", found.runs, BANDS, {}))


def test_ids_are_the_figures_own() -> None:
    svg = timeline("point-1-timeline", POINT.runs, BANDS, {})
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    assert ids and all(name.startswith("point-1-timeline-") for name in ids)
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', svg)) <= ids


def test_a_figure_is_the_same_each_time() -> None:
    assert plots.by_length("lengths", POINT, (8192,)) == plots.by_length("lengths", POINT, (8192,))


def test_bands_have_colours_of_their_own() -> None:
    many = bands(DEFAULT)
    assert len(set(plot_style.band_colours(many).values())) == len(many)
    assert list(plot_style.band_colours(many[:1]).values()) == [plot_style.RAMP[0]]


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (2e-5, "20 \u00b5s"), (0.02, "20 ms"), (1.5, "1.5 s"), (100, "100 s"), (300, "5 min"), (7200, "2 h")],
)
def test_axes_show_times_with_their_unit(value: float, written: str) -> None:
    assert plot_style.seconds(value) == written


@pytest.mark.parametrize(("value", "written"), [(0, "0"), (950, "950"), (2500, "2.5k"), (1e6, "1M")])
def test_axes_show_counts_shortly(value: float, written: str) -> None:
    assert plot_style.count(value) == written
