"""The report's page: whole, safe whatever a server says, and with every figure of the results."""

import re
from dataclasses import replace
from typing import Any

import pytest

from ropeswitch.loadtests.client.records import Point
from ropeswitch.loadtests.report import lists as report_lists
from ropeswitch.loadtests.report import verdict, written
from ropeswitch.loadtests.report.page import html
from tests.loadtests.report.made_up import BANDS, exchange, failure, point, results, run
from tests.loadtests.report.pages import Page

EVIL = '<script>alert("1")</script>'
NAMES = [str(band) for band in BANDS]
ASSERTIONS = [
    {"text": "band=0-8k,ttft_p99<0.5", "value": 0.21987, "ok": True, "point": EVIL},
    {"text": "ratio_itl_p99<1", "value": None, "ok": False, "point": "2 at a time"},
]


def evil_point() -> Point:
    """Runs in which everything that a server or a user says is a script."""
    made = point(EVIL, 2.0)
    failures = [failure(30 + i, EVIL, sent=1.0) for i in range(3)] + [failure(40, "reset & gone", http=None)]
    wrong = exchange(50, 5_000, answer=EVIL, key="381204", correct=False, factor_set=EVIL)
    right = exchange(51, 5_000, answer="never shown", key="7", correct=True)
    target = replace(made.runs[0], exchanges=(*made.runs[0].exchanges, *failures, wrong, right))
    return replace(made, runs=(target, made.runs[1]))


def evil_points() -> list[Point]:
    """That point, and one without a baseline that was repeated."""
    plain = point("2 at a time", baseline=False)
    return [evil_point(), replace(plain, runs=plain.runs * 2)]


def evil_results() -> dict[str, Any]:
    settings = {"url": EVIL, "baseline": EVIL, "seed": 7, "repetitions": 3, "header": EVIL}
    names = {"model_id": EVIL, "date": EVIL, "settings": settings, "workload": {"name": EVIL, "about": EVIL}}
    stopped = {"complete": False, "stopped": [EVIL, "the disk is full"]}
    return results(evil_points(), slo=["band=0-8k,ttft<0.1"], assertions=ASSERTIONS, **names, **stopped)


@pytest.fixture(scope="module")
def text() -> str:
    return html(evil_results(), evil_points(), BANDS, {"target": (8192,)})


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_what_servers_and_users_say_is_text(page: Page) -> None:
    assert "script" not in page.tags
    # Title, heading, urls, workload, date, stop, label, error, answer, factor set, settings.
    assert page.text.count(EVIL) >= 12


def test_the_page_needs_nothing_from_elsewhere(page: Page) -> None:
    for name, attributes in zip(page.tags, page.attributes, strict=True):
        for key, value in attributes.items():
            if key in ("src", "href", "xlink:href"):
                assert value is not None and value.startswith(("#", "data:image/png;base64,")), (name, key, value)
    assert not {"link", "iframe", "object", "a"} & set(page.tags)


def test_every_figure_is_there_and_explained(page: Page, text: str) -> None:
    figures = re.findall(r"<figure><svg.*?</svg><figcaption>(.*?)</figcaption></figure>", text, re.DOTALL)
    # For each point the first token and the longest gap by length, the requests in flight, and the throughput.
    assert len(figures) == page.tags.count("figure") == 2 * 4
    assert all(len(caption) > 40 for caption in figures)


def test_the_table_by_band_has_the_figures_of_the_results(page: Page) -> None:
    figures = evil_results()["points"][0]
    rows = page.table("Prompt tokens", "Requests")[2:]
    assert [row[0] for row in rows[::3]] == [*NAMES, "all"]
    for at, name in enumerate(NAMES):
        target, baseline, ratios = rows[3 * at : 3 * at + 3]
        ours, theirs = (figures[side]["bands"][name] for side in ("target", "baseline"))
        assert target[1] == "target" and baseline[0] == "baseline" and ratios[0] == "ratio"
        assert target[2:4] == [str(ours["completed"]), str(ours["failed"])]
        assert target[5] == written.milliseconds(ours["median_ttft_ms"])
        assert baseline[4] == written.milliseconds(theirs["median_ttft_ms"])
        assert ratios[4] == written.times(ours["median_ttft_ms"] / theirs["median_ttft_ms"])
        # More or fewer requests are neither better nor worse.
        assert ratios[1:3] == ["", ""]


def test_errors_are_grouped_and_counted(page: Page) -> None:
    rows = page.table("server", "request", "HTTP status")[1:]
    assert rows == [["target", "failed", "503", EVIL, "3"], ["target", "failed", written.NONE, "reset & gone", "1"]]


def test_wrong_answers_are_shown_and_right_ones_are_not(page: Page) -> None:
    assert page.table("server", "prompt tokens")[1:] == [["target", "5,000", "0-8k", EVIL, "381204", EVIL]]
    assert "never shown" not in page.text
    assert "target: 74 requests completed, 4 failed, 1 of 2 checked answers correct" in page.text


def test_the_slowest_requests_are_those_far_from_the_median_of_their_band() -> None:
    usual = [exchange(i, 300, sent=float(i)) for i in range(8)]
    slow = exchange(8, 310, sent=8.5, ttft=3.5)
    long, alone = exchange(9, 20_000), exchange(10, 900_000)
    found = point("one load", baseline=False)
    made = replace(found, runs=(run("target", [*usual, slow, long, exchange(11, 20_000), alone]),))
    rows = Page(report_lists.slowest([made], BANDS)).table("load", "prompt tokens")[1:]
    assert rows[0] == ["one load", "310", "3.50 s", written.times(100), "12.0 ms", "8.5 s"]
    assert len(rows) == 5 and "900,000" not in [row[1] for row in rows]
    assert report_lists.slowest([replace(found, runs=(run("target", [alone]),))], BANDS) == ""


def test_assertions_and_objectives_are_listed(page: Page) -> None:
    rows = page.table("assertion")[1:]
    # With two points each assertion names its point.
    assert rows[0] == [f"{EVIL}: band=0-8k,ttft_p99<0.5", "0.2199", "✓ holds"]
    assert rows[1] == ["2 at a time: ratio_itl_p99<1", written.NONE, "✗ failed"]
    rows = page.table("", "", *NAMES, "all")[1:]
    assert [row[:2] for row in rows] == [[EVIL, "target"], [EVIL, "baseline"], ["2 at a time", "target"]]
    assert "1 of 2 assertions failed" in page.text
    assert "band=0-8k,ttft<0.1" in page.text


def test_a_test_without_anything_has_a_report() -> None:
    nothing = Point("nothing", None, (run("target", []),))
    stopped = Point("baseline alone", None, (run("baseline", [exchange(0)]),))
    page = Page(html(results([nothing], slo=["ttft<1"]), [nothing], BANDS))
    assert "Failed requests" not in page.text and "No assertions were made" in page.text
    assert "baseline" not in page.text.replace("over the baseline's", "").replace('"baseline": null', "")
    assert page.table("Prompt tokens", "Requests")[2][0] == "all"
    early = Page(html(results([stopped], complete=False), [stopped], BANDS))
    assert "The target did not run." in early.text
    assert early.table("Prompt tokens", "Requests")[2][:3] == ["0-8k", "baseline", "1"]
    assert Page(html(results([], complete=False, stopped=["no server"]), [], BANDS)).text.count("no server") == 1


@pytest.mark.parametrize(
    ("changed", "tone", "words"),
    [
        ({}, "good", "No assertions were made"),
        ({"assertions": ASSERTIONS[:1]}, "good", "The assertion holds"),
        ({"assertions": ASSERTIONS[:1] * 2}, "good", "All 2 assertions hold"),
        ({"assertions": ASSERTIONS}, "bad", "1 of 2 assertions failed"),
        ({"complete": False, "stopped": ["full"]}, "warn", "No assertions were made"),
        ({"points": []}, "warn", "No assertions were made"),
    ],
)
def test_the_verdict(changed: dict[str, Any], tone: str, words: str) -> None:
    made = results([point()]) | changed
    assert (verdict.tone(made), verdict.headline(made)) == (tone, words)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (failure(99, "gone"), "1 request failed"),
        (exchange(99, key="1", correct=False), "1 answer wrong"),
        (exchange(99, counted_prompt_tokens=101), "1 prompt counted differently by the server"),
    ],
)
def test_failures_and_wrong_answers_of_the_target_are_no_good_verdict(bad: Any, words: str) -> None:
    made = results([Point("x", None, (run("target", [exchange(0), bad]),))])
    assert (verdict.tone(made), verdict.headline(made)) == ("warn", f"No assertions were made; {words}")
    sides = (run("target", [exchange(0)]), run("baseline", [exchange(0), bad]))
    assert verdict.tone(results([Point("x", None, sides)])) == "good"
