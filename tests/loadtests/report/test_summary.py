"""The Markdown summary: its tables are tables whatever names say, and have the figures of the results."""

import re

from ropeswitch.loadtests.client.records import Point
from ropeswitch.loadtests.report.summary import markdown, text
from ropeswitch.loadtests.report.written import NONE, milliseconds, times
from tests.loadtests.report.made_up import BANDS, exchange, failure, point, results, run

ASSERTIONS = [{"text": "a|b", "value": 0.5, "ok": True}, {"text": "c", "value": None, "ok": False}]


def tables(words: str) -> list[list[list[str]]]:
    """Every table's rows of cells; all rows of a table must have as many cells."""
    found: list[list[list[str]]] = [[]]
    for line in words.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif found[-1]:
            found.append([])
    whole = [rows for rows in found if rows]
    assert all(len(row) == len(rows[0]) for rows in whole for row in rows)
    return whole


def test_the_table_has_the_figures_of_every_band_and_their_ratios() -> None:
    made = results([point()])
    head, _, *rows = tables(markdown(made))[0]
    assert [row[0] for row in rows] == [*(str(band) for band in BANDS), "**all**"]
    sides = [made["points"][0][side] for side in ("target", "baseline")]
    for name, row in zip([*(str(band) for band in BANDS), None], rows, strict=True):
        ours, theirs = (side if name is None else side["bands"][name] for side in sides)
        cells = dict(zip(head, row, strict=False))
        assert cells["requests"] == str(ours["completed"])
        assert cells["TTFT p50"] == milliseconds(ours["median_ttft_ms"])
        assert cells["ITL p99"] == milliseconds(ours["p99_itl_ms"])
        assert row[head.index("TTFT p99") + 1] == times(ours["p99_ttft_ms"] / theirs["p99_ttft_ms"])
    assert head.count("ratio") == 6
    alone = markdown(results([point(baseline=False)]))
    assert "ratio" not in alone.lower() and "against" not in alone and len(tables(alone)[0][0]) == 8


def test_every_point_has_a_table_and_assertions_name_theirs() -> None:
    assertions = [{**found, "point": "2 | 3"} for found in ASSERTIONS]
    words = markdown(results([point("1 requests/s", 1.0), point("2 | 3", 2.0)], assertions=assertions))
    assert "#### 1 requests/s\n" in words and "#### 2 \\| 3\n" in words
    assert [row[1] for row in tables(words)[2][2:]] == ["2 \\| 3: a\\|b", "2 \\| 3: c"]


def test_a_test_without_requests_and_a_baseline_alone_have_a_summary() -> None:
    words = markdown(results([Point("x", None, (run("target", []),))]))
    assert tables(words)[0][2] == ["**all**", "0", *[NONE] * 5, "0"]
    assert f"sent late by {NONE} (median)" in words
    words = markdown(results([Point("x", None, (run("baseline", [exchange(0)]),))], complete=False))
    assert "The target did not run; these are the baseline's figures." in words
    assert tables(words)[0][2][:2] == ["0-8k", "1"] and "ratio" not in words.lower()


def test_assertions_have_their_marks_and_pipes_do_not_split_cells() -> None:
    words = markdown(results([point()], assertions=ASSERTIONS))
    assert tables(words)[1][2:] == [["✅", "a\\|b", "0.5"], ["❌", "c", NONE]]
    assert words.startswith("### ❌ Load test of made-up/model: 1 of 2 assertions failed\n")
    assert markdown(results([point()], assertions=ASSERTIONS[:1])).startswith(
        "### ✅ Load test of made-up/model: the assertion holds\n"
    )


def test_a_test_that_stopped_says_so_in_the_headline() -> None:
    words = markdown(results([point()], complete=False, stopped=["the disk is full"]))
    assert words.startswith("### ⚠️ Load test of made-up/model: stopped early; no assertions were made\n")
    assert "**Stopped early: the disk is full.**" in words
    assert "stopped early; no assertions" in markdown(results([], complete=False))


def test_failures_answers_and_lateness_are_told() -> None:
    exchanges = [exchange(0, key="1", correct=True, due=-0.25), exchange(1, key="1", correct=False), failure(2, "gone")]
    words = markdown(results([Point("x", None, (run("target", exchanges),))]))
    assert "- target: 2 requests completed, 1 failed, 1 of 2 checked answers correct" in words
    assert "sent late by 2.00 ms (median), 245 ms (p99), 250 ms (max)" in words


def test_objectives_have_their_shares() -> None:
    words = markdown(results([point()], slo=["band=0-8k,ttft<0.1"]))
    assert "band=0-8k,ttft\\<0.1" in words
    share = f"{100 * (1 - 4 / 24):.1f} %"
    assert tables(words)[1][2][1:3] == ["target", share]


def test_names_are_plain_text_on_one_line() -> None:
    assert text("a|b\n*c* `d` <i> [e](f) $x$ #1 &lt;") == "a\\|b \\*c\\* \\`d\\` \\<i\\> \\[e\\](f) \\$x\\$ \\#1 \\&lt;"
    assert text("ttft_p99 _x_ \\") == "ttft_p99 \\_x\\_ \\\\"
