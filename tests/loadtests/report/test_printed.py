"""The printed results have the figures of the results, of every band and server."""

from ropeswitch.loadtests.client.records import Point
from ropeswitch.loadtests.report.printed import text
from ropeswitch.loadtests.report.written import NONE, milliseconds, times
from tests.loadtests.report.made_up import BANDS, exchange, failure, point, results, run

ASSERTIONS = [{"text": "ttft<1", "value": 0.5, "ok": True}, {"text": "itl<2", "value": None, "ok": False}]


def test_a_table_has_every_band_of_both_servers_and_their_ratios() -> None:
    words = text(made := results([point()], slo=["band=0-8k,ttft<0.1"]))
    assert f"{100 * (1 - 4 / 24):.1f} % within all objectives" in words
    ours, theirs = (made["points"][0][side] for side in ("target", "baseline"))
    for name in map(str, BANDS):
        [row] = [line for line in words.splitlines() if line.startswith(f"{name} ")]
        assert f" {ours['bands'][name]['completed']} " in row and milliseconds(ours["bands"][name]["p99_itl_ms"]) in row
    assert milliseconds(theirs["median_e2el_ms"]) in words
    assert times(ours["p99_ttft_ms"] / theirs["p99_ttft_ms"]) in words
    assert "ratio" not in text(results([point(baseline=False)]))


def test_assertions_name_their_points_and_say_whether_they_hold() -> None:
    assertions = [{**found, "point": "2 requests/s"} for found in ASSERTIONS]
    words = text(results([point("1 requests/s", 1.0), point("2 requests/s", 2.0)], assertions=assertions))
    assert words.startswith("Load test of made-up/model: 1 of 2 assertions failed\n")
    assert words.endswith(f"holds: 2 requests/s: ttft<1: measured 0.5\n\nFAILED: 2 requests/s: itl<2: measured {NONE}")


def test_what_is_missing_is_said() -> None:
    exchanges = [exchange(0, key="1", correct=True, due=-0.25), exchange(1, key="1", correct=False), failure(2, "gone")]
    words = text(results([Point("x", None, (run("target", exchanges),))], complete=False, stopped=["the disk is full"]))
    assert "target: 2 requests completed, 1 failed, 1 of 2 checked answers correct\n" in words
    assert "sent late by 2.00 ms (median), 245 ms (p99), 250 ms (max)" in words
    assert "Stopped early: the disk is full." in words
    assert f"sent late by {NONE} (median)" in text(results([Point("x", None, (run("target", []),))]))
