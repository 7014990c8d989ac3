"""The report's part on the server's own metrics."""

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
    """A figure and tables of a run's samples, and in words what the server does not tell.

    Args:
        name: See :func:`plot_style.svg`.
        run: The run.
    """
    title = tag("h3", f"What the {run.side} says of itself", class_=f"dot {run.side}")
    missing = metrics.missing(run.samples)
    every = len(metrics.missing(()))
    if len(run.samples) < 2 or len(missing) == every:
        told = (
            "its metrics were not read" if not run.samples else "it was read too seldom or has none of vLLM's metrics"
        )
        return join(title, tag("p", f"Nothing is shown of the {run.side}'s own metrics: {told}."))
    if metrics.restarted(run.samples):
        return join(
            title, tag("p", "Its counters fell during the run: it was restarted, and they say nothing of the run.")
        )
    caption = (
        "The server's gauges and counters in its colour, what the client saw in grey. Where the two differ, requests wait "
        "on their way, or others use the server."
    )
    lacking = [tag("p", f"This server does not have: {', '.join(missing)}.", class_="faint")] if missing else []
    return join(title, tag("figure", Markup(server(name, run)), tag("figcaption", caption)), _tables(run), *lacking)


def _tables(run: Run) -> Markup:
    """The server's latencies from its histograms beside the client's, and by how much its counters grew."""
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
        table([heading("counter", "grew by")], (_row([label, written.whole(value)]) for label, value in counted)),
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
