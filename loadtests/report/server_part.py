"""The report's section on the server's metrics."""

from collections.abc import Sequence

import numpy as np

from ropeswitch.loadtests.client.records import Exchange, Run
from ropeswitch.loadtests.report import server_metrics as metrics
from ropeswitch.loadtests.report import written
from ropeswitch.loadtests.report.markup import Markup, join, tag
from ropeswitch.loadtests.report.plot_server import server
from ropeswitch.loadtests.report.tables import heading, table

LATENCIES = {"ttft": "first token", "itl": "between tokens", "e2el": "last token"}


def of_server(name: str, run: Run) -> Markup:
    """Return a figure and tables of a run's samples, and a note on missing metrics.

    Args:
        name: See :func:`plot_style.svg`.
        run: The run.
    """
    title = tag("h3", f"Metrics of the {run.side}", class_=f"dot {run.side}")
    missing = metrics.missing(run.samples)
    every = len(metrics.missing(()))
    if len(run.samples) < 2 or len(missing) == every:
        told = (
            "they were not scraped" if not run.samples else "they were scraped only once or have none of vLLM's metrics"
        )
        return join(title, tag("p", f"No metrics of the {run.side} are shown: {told}."))
    if metrics.restarted(run.samples):
        return join(
            title, tag("p", "Its counters fell during the run: it was restarted, so they do not describe the run.")
        )
    caption = (
        "The server's gauges and counters in its colour, the client's measurements in grey. Where the two differ, requests "
        "wait between client and server, or other clients use the server."
    )
    lacking = [tag("p", f"Not exported by this server: {', '.join(missing)}.", class_="faint")] if missing else []
    return join(title, tag("figure", Markup(server(name, run)), tag("figcaption", caption)), _tables(run), *lacking)


def _tables(run: Run) -> Markup:
    """Return tables of the server's latencies, from its histograms, next to the client's, and of its counters' increases."""
    done = [exchange for exchange in run.exchanges if exchange.status == "completed"]
    rows = []
    for key, series in metrics.HISTOGRAMS.items():
        values = _of_client(done, key)
        for label, part in (("p50", 0.5), ("p99", 0.99)):
            server = metrics.quantile(run.samples, series, part)
            client = float(np.quantile(values, part)) * 1000 if values else None
            told = (
                written.NONE if server is None else f"{'> ' * server.above}{written.milliseconds(server.value * 1000)}"
            )
            rows.append([f"{LATENCIES[key]}, {label}", told, written.milliseconds(client)])
    counted = [(label, metrics.increase(run.samples, series)) for label, series in metrics.COUNTERS.items()]
    return tag(
        "div",
        table([heading("latency", "by the server", "by the client")], map(_row, rows)),
        table([heading("counter", "increase")], (_row([label, written.whole(value)]) for label, value in counted)),
        class_="pair",
    )


def _row(cells: Sequence[str]) -> Markup:
    return tag("tr", tag("th", cells[0], scope="row"), *(tag("td", cell) for cell in cells[1:]), class_="first")


def _of_client(done: Sequence[Exchange], key: str) -> list[float]:
    if key == "ttft":
        return [exchange.ttft for exchange in done if exchange.ttft is not None]
    if key == "itl":
        return [gap for exchange in done for gap in exchange.itl]
    return [exchange.latency for exchange in done]
