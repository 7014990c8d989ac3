"""``make docs-metrics``: writes the tables of ``docs/metrics.md`` from the code."""

from collections.abc import Iterable
from pathlib import Path

from ropeswitch.server.metrics import instruments, queue_metrics
from ropeswitch.server.metrics.instruments import INSTRUMENTS, Instrument
from ropeswitch.server.metrics.scheduling_metrics import GAUGES
from tests.docs.made import Tables, table, write

PAGE = Path("docs/metrics.md")
_QUEUE = (queue_metrics.REQUESTS, queue_metrics.TOKENS)


def _metrics() -> str:
    every = (*INSTRUMENTS, instruments.POLICY, instruments.REJECTIONS)
    rows = [(each.name, each.kind, _of_four(each), _sentence(each.text)) for each in every]
    rows += [(name, "gauge", _labels(("model_name", "engine")), _sentence(text)) for name, text in GAUGES.values()]
    rows += [(name, "gauge", _labels(queue_metrics.LABELS), _sentence(text)) for name, text in _QUEUE]
    more = (queue_metrics.DROPPED, queue_metrics.UNVERIFIED)
    rows += [(name, "gauge", _labels(("model_name",)), _sentence(text)) for name, text in more]
    return table(
        ("Name", "Type", "Labels", "Meaning"), ((f"`{name}`", kind, labels, text) for name, kind, labels, text in rows)
    )


def _values() -> str:
    rows = (
        ("`outcome`", "sequences in an engine", _labels(instruments.OUTCOMES)),
        ("`outcome`", "requests that never reached one", _labels(instruments.OUTSIDE)),
        ("`reason`", "refused requests", _labels(instruments.REASONS)),
        ("`policy`", "sequences that had their first output", _labels(instruments.POLICY.values)),
        ("`state`", "live sequences", _labels(instruments.LIVE.values)),
    )
    return table(("Label", "Of", "Values"), rows)


def _of_four(instrument: Instrument) -> str:
    if instrument.common != instruments.LABELS:
        return _labels(instrument.labels)
    return f"the four, `{instrument.label}`" if instrument.label else "the four"


def _labels(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _sentence(text: str) -> str:
    return text[0].lower() + text[1:].rstrip(".")


TABLES: Tables = {"names": _metrics, "values": _values}


if __name__ == "__main__":
    write(PAGE, "docs-metrics", TABLES)
