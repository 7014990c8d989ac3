"""The report of a load test: one self-contained HTML page."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ropeswitch.loadtests.client.assertions import Slo
from ropeswitch.loadtests.client.bands import Band
from ropeswitch.loadtests.client.records import Point, Side
from ropeswitch.loadtests.report import lists as report_lists
from ropeswitch.loadtests.report import plots, verdict, written
from ropeswitch.loadtests.report import tables as report_tables
from ropeswitch.loadtests.report.markup import Markup, tag
from ropeswitch.loadtests.report.page_style import STYLE
from ropeswitch.loadtests.report.plot_sweep import sweep, throughput
from ropeswitch.loadtests.report.plot_times import timeline
from ropeswitch.loadtests.report.reading import Figures, ratio
from ropeswitch.loadtests.report.server_part import of_server

# Label, key, formatter, and whether less is better.
CARDS = (
    ("output tokens/s", "output_throughput", written.digits, False),
    ("requests/s", "request_throughput", written.digits, False),
    ("time to first token, p50", "median_ttft_ms", written.milliseconds, True),
    ("time to first token, p99", "p99_ttft_ms", written.milliseconds, True),
    ("time between chunks, p99", "p99_itl_ms", written.milliseconds, True),
    ("within the objectives", "good_share", written.share, False),
)


def html(
    results: Mapping[str, Any],
    points: Sequence[Point],
    bands: Sequence[Band],
    limits: Mapping[Side, Sequence[int]] = MappingProxyType({}),
) -> str:
    """Return the page.

    Args:
        results: Content of ``results.json``.
        points: The runs behind its points, in the same order.
        bands: Length bands, from short to long.
        limits: Lengths at which each server's factor sets end, if known; the plots mark them.
    """
    title = f"Load test of {results['model_id']}"
    slos = [Slo.parse(text) for text in results["slo"]]
    sections = [_header(title, results), _verdict(results)]
    if slos:
        sections += [tag("h2", "Objectives"), report_lists.objectives(results)]
    if results["assertions"]:
        sections += [tag("h2", "Assertions"), report_lists.assertions(results)]
    sections += [report_lists.wrong_answers(points, bands), tag("h2", "Failed requests"), report_lists.errors(points)]
    sections.append(report_lists.slowest(points, bands))
    if len(results["points"]) > 1:
        caption = (
            "Each mark is one load. Lines are solid for the target and dashed for the baseline; tail latencies have the "
            "colours of the length bands. The server is saturated where tail latencies rise and throughput does not."
        )
        drawn = _figure(sweep("sweep", results["points"], bands), caption)
        sections.append(_folded("All loads", drawn, report_tables.by_point(results["points"])))
    details = []
    for place, (result, point) in enumerate(zip(results["points"], points, strict=True)):
        # Of several with one name, the browser keeps at most one open.
        opened = {} if place else {"open": ""}
        parts = _point(f"point-{place}", result, point, bands, limits, slos)
        details.append(_folded(str(result["label"]), *parts, id=f"point-{place}", name_="load", **opened))
    sections.append(_folded("Throughput and latency in detail", *details))
    sections.append(_footer(results))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    body = tag("body", *sections)
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _header(title: str, results: Mapping[str, Any]) -> Markup:
    settings, workload = results["settings"], results["workload"]
    lines = [(tag("span", "target", class_="dot target"), settings["url"])]
    if settings.get("baseline"):
        lines.append((tag("span", "baseline", class_="dot baseline"), settings["baseline"]))
    lines += [
        (Markup("workload"), workload["name"]),
        (Markup("date"), results["date"]),
        (Markup("seed"), str(settings["seed"])),
        (Markup("repetitions"), str(settings["repetitions"])),
    ]
    listed = [tag("div", tag("dt", name), tag("dd", value)) for name, value in lines]
    about = tag("p", workload.get("about") or "", class_="faint about")
    return tag("header", tag("h1", title), about, tag("dl", *listed, class_="run"))


def _verdict(results: Mapping[str, Any]) -> Markup:
    early = [] if results["complete"] else [tag("strong", verdict.stops(results))]
    lines = tag("ul", *(tag("li", line, class_=f"dot {line.partition(':')[0]}") for line in verdict.tally(results)))
    words = tag("strong", verdict.headline(results))
    return tag("section", *early, words, lines, class_=f"verdict {verdict.tone(results)}")


def _point(
    name: str,
    result: Figures,
    point: Point,
    bands: Sequence[Band],
    limits: Mapping[Side, Sequence[int]],
    slos: Sequence[Slo],
) -> list[Markup]:
    """Build the parts of one point."""
    runs = [point.side(side)[0] for side in plots.present(point)]
    several = any(len(point.side(side)) > 1 for side in plots.present(point))
    first = " Only the first repetition is shown." if several else ""
    parts = [_cards(result)]
    parts += [tag("h3", "By prompt length"), report_tables.by_band(result, bool(slos))]
    drawn = [
        (
            plots.latency(f"{name}-latency", result),
            "Latency percentiles by length band: a line runs from p50 (dot) through p90 (bar) to p99 (triangle). "
            "Lower is better, and a short line means consistent latency.",
        ),
        (
            plots.distributions(f"{name}-distributions", point, bands),
            "Cumulative distributions of the time to first token and of the time between chunks: further left is better, "
            "and a long flat end is a tail.",
        ),
        (
            plots.by_length(f"{name}-lengths", point, limits.get("target", ())),
            "Time to first token of every completed request, by prompt length. Points far above the others of their length "
            "waited for something other than their own prompt.",
        ),
        (
            throughput(f"{name}-throughput", point),
            "Tokens per second over the run; prompt tokens are spread over the time to the first token." + first,
        ),
    ]
    if slos:
        caption = (
            "The share of requests that meet all their objectives, and each objective alone; the lowest bar shows what "
            "breaks first."
        )
        drawn.append((plots.goodput(f"{name}-goodput", result, point, slos, bands), caption))
    caption = (
        "Every request is a bar, pale until its first token. Below, on the same time axis: time to first token, requests in "
        "flight and output tokens by band, and how late requests were sent. If they were sent very late, the client was too "
        "slow, and the figures describe it rather than the server." + first
    )
    if runs:
        drawn.append((timeline(f"{name}-timeline", runs, bands, limits), caption))
    parts += [_figure(*figure) for figure in drawn]
    parts += [tag("h3", "All requests"), report_tables.totals(result)]
    return [*parts, *(of_server(f"{name}-{run.side}", run) for run in runs)]


def _cards(result: Figures) -> Markup:
    if result["target"] is None:
        return tag("p", "The target did not run.")
    cards = []
    for label, key, write, less_is_better in CARDS:
        value, baseline = result["target"].get(key), result["baseline"]
        if value is None:
            continue
        content = [tag("b", write(value)), tag("span", label)]
        if baseline is not None:
            times = ratio(key, result["target"], baseline)
            words = f"{written.times(times)} the baseline's {write(baseline.get(key))}"
            content.append(tag("span", words, class_=report_tables.compared(times, less_is_better)))
        cards.append(tag("div", *content, class_="card"))
    return tag("div", *cards, class_="cards")


def _folded(title: str, *content: Markup, **attributes: str) -> Markup:
    return tag("details", tag("summary", tag("h2", title)), *content, class_="folded", **attributes)


def _figure(svg: str, caption: str) -> Markup:
    return tag("figure", Markup(svg), tag("figcaption", caption))


def _footer(results: Mapping[str, Any]) -> Markup:
    settings = json.dumps(results["settings"], indent=1, ensure_ascii=False)
    words = (
        "Latencies are of completed requests, as defined by vLLM's benchmark: to the first token (TTFT), between chunks "
        "(ITL), per output token after the first (TPOT), and to the last token (e2el). Ratios are the target's figure over "
        "the baseline's. In lengths, 1k is 1024 tokens."
    )
    return tag("footer", tag("p", words), tag("details", tag("summary", "Settings"), tag("pre", settings)))
