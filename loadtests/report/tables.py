"""The report's tables of figures: by band, for all requests, and by point of a sweep."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence

from ropeswitch.loadtests.report import written
from ropeswitch.loadtests.report.markup import Markup, tag
from ropeswitch.loadtests.report.reading import Figures, band_names, ratio, sides

Writer = Callable[[float | None], str]
# Group, heading, key, formatter, and whether less is better (None: neither).
BANDED: tuple[tuple[str, str, str, Writer, bool | None], ...] = (
    ("Requests", "done", "completed", written.whole, None),
    ("Requests", "failed", "failed", written.whole, None),
    ("Output", "tokens/s", "output_throughput", written.digits, False),
    ("Time to first token", "p50", "median_ttft_ms", written.milliseconds, True),
    ("Time to first token", "p90", "p90_ttft_ms", written.milliseconds, True),
    ("Time to first token", "p99", "p99_ttft_ms", written.milliseconds, True),
    ("Between chunks", "p50", "median_itl_ms", written.milliseconds, True),
    ("Between chunks", "p99", "p99_itl_ms", written.milliseconds, True),
    ("Per token", "p50", "median_tpot_ms", written.milliseconds, True),
    ("Per token", "p99", "p99_tpot_ms", written.milliseconds, True),
    ("To last token", "p50", "median_e2el_ms", written.milliseconds, True),
    ("To last token", "p99", "p99_e2el_ms", written.milliseconds, True),
)
GOOD = ("Objectives", "within", "good_share", written.share, False)
TOTALS: tuple[tuple[str, str, Writer, bool | None], ...] = (
    ("requests/s", "request_throughput", written.digits, False),
    ("requests/s within the objectives", "request_goodput", written.digits, False),
    ("output tokens/s", "output_throughput", written.digits, False),
    ("prompt and output tokens/s", "total_token_throughput", written.digits, False),
    ("prompt tokens", "total_input_tokens", written.whole, None),
    ("output tokens", "total_output_tokens", written.whole, None),
    ("most requests in flight", "max_concurrent_requests", written.whole, None),
    ("duration in seconds", "duration", written.digits, None),
    ("cancelled by the client", "cancelled", written.whole, None),
    ("interrupted by the run's end", "interrupted", written.whole, None),
    ("outgrew a factor set", "crossings", written.whole, None),
    ("sent late by, p99", "p99_lateness_ms", written.milliseconds, None),
    ("due time to first token, p50", "median_ttft_due_ms", written.milliseconds, True),
    ("due time to first token, p99", "p99_ttft_due_ms", written.milliseconds, True),
)
POINTS: tuple[tuple[str, str, Writer], ...] = (
    ("requests/s", "request_throughput", written.digits),
    ("goodput", "request_goodput", written.digits),
    ("output tokens/s", "output_throughput", written.digits),
    ("first token, p50", "median_ttft_ms", written.milliseconds),
    ("first token, p99", "p99_ttft_ms", written.milliseconds),
    ("between chunks, p50", "median_itl_ms", written.milliseconds),
    ("between chunks, p99", "p99_itl_ms", written.milliseconds),
    ("failed", "failed", written.whole),
)


def table(head: Sequence[Markup], rows: Iterable[Markup]) -> Markup:
    """Build a table that scrolls if it is wider than the page."""
    return tag("div", tag("table", tag("thead", *head), tag("tbody", *rows)), class_="table")


def heading(*names: str, texts: Container[str] = ()) -> Markup:
    """Build a header row; the first column and those named in ``texts`` are text, aligned to the left."""
    kinds = ["text" if not place or name in texts else "number" for place, name in enumerate(names)]
    return tag("tr", *(tag("th", name, scope="col", class_=kind) for name, kind in zip(names, kinds, strict=True)))


def ratio_cell(key: str, ours: Figures, theirs: Figures, less_is_better: bool | None) -> Markup:
    """Build the cell with the ratio of two servers' figures; empty for a figure that is neither better nor worse.

    A ratio within 5 % of 1 is neither better nor worse.
    """
    if less_is_better is None:
        return tag("td")
    value = ratio(key, ours, theirs)
    kind = "same"
    if value is not None and not 0.95 <= value <= 1.05:
        kind = "better" if (value < 1) == less_is_better else "worse"
    return tag("td", written.times(value), class_=kind)


def by_band(point: Figures, judged: bool) -> Markup:
    """Build the table of figures by band and for all requests: a row per server, and their ratio."""
    columns = (*BANDED, GOOD) if judged else BANDED
    groups = Counter(column[0] for column in columns)
    both = len(sides(point)) == 2
    blank = tag("th", "Prompt tokens", colspan="2", class_="text")
    top = [tag("th", group, colspan=str(number), scope="colgroup") for group, number in groups.items()]
    second = [tag("th", ""), tag("th", ""), *(tag("th", column[1], scope="col") for column in columns)]
    rows = []
    for name in (*band_names(point), None):
        found = [(side, figures if name is None else figures["bands"].get(name, {})) for side, figures in sides(point)]
        label = tag("th", name or "all", rowspan="3" if both else "1", scope="rowgroup")
        for place, (side, figures) in enumerate(found):
            cells = [tag("td", write(figures.get(key))) for _, _, key, write, _ in columns]
            first = [] if place else [label]
            row = [*first, tag("th", side, class_=f"dot {side}"), *cells]
            rows.append(tag("tr", *row, class_="first" if first else "more"))
        if both:
            cells = [ratio_cell(key, found[0][1], found[1][1], better) for _, _, key, _, better in columns]
            rows.append(tag("tr", tag("th", "ratio"), *cells, class_="ratio"))
    return table([tag("tr", blank, *top), tag("tr", *second)], rows)


def totals(point: Figures) -> Markup:
    """Build the table of figures for all requests; figures that no server has are left out."""
    found = sides(point)
    rows = []
    for label, key, write, better in TOTALS:
        if any(of.get(key) is not None for _, of in found):
            cells = [tag("td", write(of.get(key))) for _, of in found]
            if len(found) == 2:
                cells.append(ratio_cell(key, found[0][1], found[1][1], better))
            rows.append(tag("tr", tag("th", label, scope="row"), *cells, class_="first"))
    return table([heading("", *(side for side, _ in found), *(["ratio"] if len(found) == 2 else []))], rows)


def by_point(points: Sequence[Figures]) -> Markup:
    """Build a table with a row for each server at each point of a sweep."""
    rows = []
    for point in points:
        for place, (side, figures) in enumerate(sides(point)):
            cells = [tag("td", write(figures[key])) for _, key, write in POINTS]
            label = tag("th", "" if place else point["label"], scope="row")
            kind = "more" if place else "first"
            rows.append(tag("tr", label, tag("th", side, class_=f"dot {side}"), *cells, class_=kind))
    return table([heading("", "", *(name for name, _, _ in POINTS))], rows)
