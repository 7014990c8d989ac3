"""The report's plots: what they show, read from their SVG and from the drawn figure."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.figure import Figure

from ropeswitch.loadtests.client.records import Exchange, Point
from ropeswitch.loadtests.report import plot_style, plots
from tests.loadtests.report.made_up import exchange, failure, point, run

POINT = point()


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def alone(exchanges: Sequence[Exchange]) -> Point:
    return Point("alone", None, (run("target", exchanges),))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that plots make."""
    made: list[Figure] = []
    figure = plot_style.figure

    def keeping(height: float) -> Figure:
        made.append(figure(height))
        return made[-1]

    monkeypatch.setattr(plot_style, "figure", keeping)
    return made


@pytest.mark.parametrize("plot", [plots.first_token, plots.gaps])
def test_every_completed_request_is_a_dot_at_its_length(plot: "object", drawn: list[Figure]) -> None:
    made = alone([exchange(0, 300), exchange(1, 20_000), failure(2, "gone")])
    assert callable(plot)
    labels = texts(plot("by-length", made, (8192, 2_000_000)))
    [dots] = drawn[0].axes[0].collections
    expected = 0.02 + 300 / 20_000 if plot is plots.first_token else 0.012
    assert np.asarray(dots.get_offsets())[0] == pytest.approx([300, expected])
    assert [x for x, _ in np.asarray(dots.get_offsets())] == [300, 20_000]
    assert " set ends at 8k" in labels and not any("1.91M" in label or "2000000" in label for label in labels)
    assert "4k" in labels and "prompt tokens" in labels


def test_many_requests_are_pixels() -> None:
    svg = plots.first_token("dense", alone([exchange(i, 300 + i) for i in range(plot_style.DENSE + 1)]), ())
    assert "data:image/png;base64," in svg and len(svg) < 500_000


def test_the_timeline_has_requests_in_flight_and_those_without_a_token(drawn: list[Figure]) -> None:
    made = alone([exchange(0, sent=0.0, ttft=2.0, latency=3.0), exchange(1, sent=1.0, ttft=3.0, latency=4.0)])
    labels = texts(plots.timeline("timeline", made))
    axes = drawn[0].axes[0]
    times, flight = axes.lines[0].get_data()
    assert list(zip(times, flight, strict=True)) == [(0, 0), (0, 1), (1, 2), (3, 1), (5, 0)]
    [waiting] = axes.collections
    assert max(y for _, y in waiting.get_paths()[0].vertices) == 2
    # The second one's first token came at 4 s, and nothing waits after it.
    assert max(x for x, y in waiting.get_paths()[0].vertices if y > 0) == 4
    assert {"Requests of the target", "in flight", "queued or in prefill"} <= set(labels)


def test_throughput_adds_up_to_all_tokens(drawn: list[Figure]) -> None:
    plots.throughput("throughput", POINT)
    for axes, tokens in zip(drawn[0].axes, (24 * 20, None), strict=True):
        values, edges, _ = axes.patches[0].get_data()
        total = sum(values * np.diff(edges))
        assert tokens is None or total == pytest.approx(tokens)


NOT_STREAMED = exchange(0, ttft=None, itl=(), streamed=False)


@pytest.mark.parametrize(
    "exchanges", [[], [failure(0, "gone")], [NOT_STREAMED]], ids=["none", "failed", "not streamed"]
)
def test_nothing_to_show_is_said(exchanges: list[Exchange]) -> None:
    found = alone(exchanges)
    assert "no request has one" in texts(plots.first_token("first", found, (8192,)))
    assert "no request has one" in texts(plots.gaps("gaps", found, (8192,)))
    assert "Output tokens/s" in texts(plots.throughput("throughput", found))
    assert "Requests of the target" in texts(plots.timeline("timeline", found))


def test_servers_are_told_apart() -> None:
    for svg in (plots.first_token("a", POINT, ()), plots.throughput("b", POINT)):
        assert {"target", "baseline"} <= set(texts(svg)) and "var(--target" in svg and "var(--baseline" in svg
    assert {"Requests of the target", "Requests of the baseline"} <= set(texts(plots.timeline("c", POINT)))


def test_a_figure_is_the_same_each_time() -> None:
    assert plots.gaps("lengths", POINT, (8192,)) == plots.gaps("lengths", POINT, (8192,))


def test_axes_show_times_with_their_unit_and_counts_shortly() -> None:
    times = {0: "0", 2e-5: "20 \u00b5s", 0.02: "20 ms", 1.5: "1.5 s", 100: "100 s", 300: "5 min", 7200: "2 h"}
    assert {value: plot_style.seconds(value) for value in times} == times
    counts = {0: "0", 950: "950", 2500: "2.5k", 1e6: "1M"}
    assert {value: plot_style.count(value) for value in counts} == counts
