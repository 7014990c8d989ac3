"""The report of a load test: one self-contained HTML page, the verdict first."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ropeswitch.loadtests.client.bands import Band
from ropeswitch.loadtests.client.records import Point, Side
from ropeswitch.loadtests.report import lists, plots, tables, verdict
from ropeswitch.loadtests.report.markup import Markup, join, tag
from ropeswitch.loadtests.report.page_style import STYLE
from ropeswitch.loadtests.report.reading import Figures


def html(
    results: Mapping[str, Any],
    points: Sequence[Point],
    bands: Sequence[Band],
    limits: Mapping[Side, Sequence[int]] = MappingProxyType({}),
) -> str:
    """Return the page of ``results.json`` and the runs behind its points; plots mark the ends of factor sets."""
    title = f"Load test of {results['model_id']}"
    sections = [_header(title, results), _verdict(results)]
    if results["slo"]:
        sections += [tag("h2", "Objectives"), lists.objectives(results)]
    if results["assertions"]:
        sections += [tag("h2", "Assertions"), lists.assertions(results)]
    sections += [lists.wrong_answers(points, bands), lists.errors(points), lists.slowest(points, bands)]
    pairs = list(zip(results["points"], points, strict=True))
    if len(pairs) > 1:
        sections += [tag("h2", "Loads"), tables.by_point(results["points"])]
    for place, (result, point) in enumerate(pairs):
        drawn = join(*_plots(f"point-{place}", point, limits.get("target", ())))
        title_of_plots = str(result["label"]) if len(pairs) > 1 else "Latency, queue and throughput"
        sections.append(_folded(title_of_plots, drawn, opened=not place, id=f"point-{place}", name_="load"))
    sections.append(_folded("All figures", *(_figures(result, bool(results["slo"])) for result, _ in pairs)))
    sections.append(_footer(results))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', *sections), lang='en')}\n"


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


def _plots(name: str, point: Point, limits: Sequence[int]) -> list[Markup]:
    if not plots.present(point):
        return [tag("p", "No server ran.")]
    missing = [] if point.side("target") else [tag("p", "The target did not run.")]
    several = any(len(point.side(side)) > 1 for side in plots.present(point))
    first = " Only the first repetition is shown." if several else ""
    drawn = [
        (plots.first_token(f"{name}-first", point, limits), "Each dot is a completed request. Lower is better."),
        (
            plots.gaps(f"{name}-gaps", point, limits),
            "The longest pause that the reader of an answer saw, for each request.",
        ),
        (
            plots.timeline(f"{name}-timeline", point),
            "The filled part has no token yet: it waits, or its prompt is being computed. A filled part that grows means "
            f"that requests arrive faster than they are served.{first}",
        ),
        (
            plots.throughput(f"{name}-throughput", point),
            "Output tokens arrive with their chunks; a prompt's tokens are spread evenly until its first output token.",
        ),
    ]
    return missing + [tag("figure", Markup(svg), tag("figcaption", caption)) for svg, caption in drawn]


def _figures(result: Figures, judged: bool) -> Markup:
    return join(tag("h3", str(result["label"])), tables.by_band(result, judged), tables.totals(result))


def _folded(title: str, *content: Markup, opened: bool = False, **attributes: str) -> Markup:
    attributes |= {"open": ""} if opened else {}
    return tag("details", tag("summary", tag("h2", title)), *content, class_="folded", **attributes)


def _footer(results: Mapping[str, Any]) -> Markup:
    settings = json.dumps(results["settings"], indent=1, ensure_ascii=False)
    words = (
        "Latencies are of completed requests, as defined by vLLM's benchmark: to the first token (TTFT), between chunks "
        "(ITL), per output token after the first (TPOT), and to the last token (e2el). Ratios are the target's figure over "
        "the baseline's. In lengths, 1k is 1024 tokens."
    )
    return tag("footer", tag("p", words), tag("details", tag("summary", "Settings"), tag("pre", settings)))
