"""The report's lists: objectives, assertions, failures, wrong answers, slow requests."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ropeswitch.loadtests.client.bands import Band, band
from ropeswitch.loadtests.client.records import Exchange, Point
from ropeswitch.loadtests.report import written
from ropeswitch.loadtests.report.markup import Markup, join, tag
from ropeswitch.loadtests.report.reading import band_names, sides
from ropeswitch.loadtests.report.tables import heading, table
from ropeswitch.loadtests.report.verdict import subject

MOST = 10
MOST_SLOW = 5
MOST_CHARACTERS = 400


def errors(points: Sequence[Point]) -> Markup:
    """Return the table of errors by server, status and message, the most frequent first; empty if there are none."""
    counted = Counter(
        (run.side, exchange.status, str(exchange.http_status or written.NONE), exchange.error or "no message")
        for point in points
        for run in point.runs
        for exchange in run.exchanges
        if exchange.status == "failed" or exchange.error
    )
    if not counted:
        return Markup()
    rows = [
        _row(side, tag("td", status, class_="text"), http, _wide(message), f"{number:,}")
        for (side, status, http, message), number in counted.most_common(MOST)
    ]
    head = heading("server", "request", "HTTP status", "message", "count", texts=("request", "message"))
    return join(tag("h2", "Failed requests"), table([head], rows), _more(len(counted) - len(rows), "rarer message"))


def wrong_answers(points: Sequence[Point], bands: Sequence[Band]) -> Markup:
    """Return the table of answers without the pass key, the target's and shortest prompts first; empty if there are none."""
    wrong = [
        (exchange.prompt_tokens, run.side, exchange)
        for point in points
        for run in point.runs
        for exchange in run.exchanges
        if exchange.correct is False
    ]
    # The target's first.
    wrong.sort(key=lambda found: (found[1] != "target", found[0]))
    rows = []
    for tokens, side, exchange in wrong[:MOST]:
        inside = next((str(band) for band in bands if tokens in band), written.NONE)
        names = [exchange.factor_set or written.NONE, exchange.key or written.NONE]
        rows.append(_row(side, written.whole(tokens), inside, *names, _wide(exchange.answer)))
    if not rows:
        return Markup()
    head = heading("server", "prompt tokens", "band", "factor set", "pass key", "answer", texts=("answer",))
    return join(tag("h2", "Wrong answers"), table([head], rows), _more(len(wrong) - len(rows), "more answer"))


def _row(side: str, *cells: str) -> Markup:
    made = [each if isinstance(each, Markup) else tag("td", each) for each in cells]
    return tag("tr", tag("th", side, class_=f"dot {side}"), *made, class_="first")


def _wide(text: str) -> Markup:
    short = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} … ({len(text):,} characters)"
    return tag("td", short, class_="text wide")


def _more(number: int, what: str) -> Markup:
    return tag("p", f"{written.plural(number, what)} not shown.", class_="faint") if number else Markup()


def slowest(points: Sequence[Point], bands: Sequence[Band]) -> Markup:
    """Return the table of the target's slowest first tokens, relative to the median of their length band and point."""
    found: list[tuple[float, float, Point, Exchange]] = []
    for point in points:
        done = [
            (exchange.ttft, exchange)
            for run in point.side("target")
            for exchange in run.exchanges
            if exchange.status == "completed" and exchange.ttft is not None
        ]
        for each in bands:
            inside = [(ttft, exchange) for ttft, exchange in done if exchange.prompt_tokens in each]
            # One alone is its own median.
            if len(inside) > 1:
                middle = median(ttft for ttft, _ in inside)
                found += [(ttft / middle if middle else 1.0, ttft, point, exchange) for ttft, exchange in inside]
    found.sort(key=lambda row: -row[0])
    rows = []
    for times, ttft, point, exchange in found[:MOST_SLOW]:
        gap = written.milliseconds(1000 * max(exchange.itl, default=0.0))
        cells = [written.milliseconds(1000 * ttft), written.times(times), gap, f"{exchange.sent:.1f} s"]
        numbers = [tag("td", each) for each in (written.whole(exchange.prompt_tokens), *cells)]
        rows.append(tag("tr", tag("th", point.label, scope="row"), *numbers, class_="first"))
    if not rows:
        return Markup()
    columns = ("load", "prompt tokens", "first token", "vs. band median", "longest gap", "sent at")
    return join(tag("h2", "Slowest requests"), table([heading(*columns)], rows))


def assertions(results: Mapping[str, Any]) -> Markup:
    """Return the table of assertions: the measured value, and whether the assertion holds."""
    rows = []
    for found in results["assertions"]:
        value = written.NONE if found["value"] is None else f"{found['value']:.4g}"
        ok = tag("td", "✓ holds", class_="ok") if found["ok"] else tag("td", "✗ failed", class_="broken")
        rows.append(tag("tr", tag("th", subject(results, found)), tag("td", value), ok, class_="first"))
    return table([heading("assertion", "measured (times in seconds)", "")], rows)


def objectives(results: Mapping[str, Any]) -> Markup:
    """Return the objectives and the table of the share of requests that met them all, by point, server and band."""
    listed = tag("ul", *(tag("li", tag("code", slo)) for slo in results["slo"]))
    names = sorted({name for point in results["points"] for name in band_names(point)}, key=band)
    rows = []
    for point in results["points"]:
        for side, figures in sides(point):
            shares = [figures["bands"].get(name, {}).get("good_share") for name in names] + [figures["good_share"]]
            cells = [*map(written.share, shares), written.digits(figures["request_goodput"])]
            head = [tag("th", point["label"], scope="row"), tag("th", side, class_=f"dot {side}")]
            rows.append(tag("tr", *head, *(tag("td", each) for each in cells), class_="first"))
    return join(listed, table([heading("", "", *names, "all", "goodput, requests/s")], rows))
