"""``make docs-metrics``: writes the tables of ``docs/metrics.md`` from the code."""

from collections.abc import Iterable
from pathlib import Path

from ropeswitch.server.metrics import instruments, queue_metrics
from ropeswitch.server.metrics.instruments import INSTRUMENTS, Instrument
from ropeswitch.server.metrics.scheduling_metrics import GAUGES
from ropeswitch.server.metrics.series import SeriesPlan, bounds, series
from tests.docs.made import Tables, table, write
from tests.server.metrics.ladders import ladder

PAGE = Path("docs/metrics.md")
_QUEUE = (queue_metrics.REQUESTS, queue_metrics.TOKENS)

# Where the sets end, in tokens, with what each ladder is an example of.
LADDERS = {
    "512, 1,024, 32,768, 262,144 (the bundled model)": (512, 1024, 32768, 262144),
    "4k, 128k (Phi-3)": (4096, 131072),
    "8k, 2,048k (LLaMA2)": (8192, 2097152),
    "8k, 128k, 2,048k": (8192, 131072, 2097152),
    "4k, 8k, 32k, 256k, 512k, 1,024k, 2,048k": (4096, 8192, 32768, 262144, 524288, 1048576, 2097152),
}


def _metrics() -> str:
    rows = [(each.name, each.kind, _of_four(each), _sentence(each.text)) for each in INSTRUMENTS]
    policies = (instruments.POLICY, "counter", _labels(instruments.POLICY_LABELS))
    rows.append((*policies, _sentence(instruments.POLICY_TEXT)))
    rejections = (instruments.REJECTIONS, "counter", _labels(instruments.REJECTIONS_LABELS))
    rows.append((*rejections, _sentence(instruments.REJECTIONS_TEXT)))
    rows += [(name, "gauge", _labels(("model_name", "engine")), _sentence(text)) for name, text in GAUGES.values()]
    rows += [(name, "gauge", _labels(queue_metrics.LABELS), _sentence(text)) for name, text in _QUEUE]
    rows.append((queue_metrics.DROPPED[0], "gauge", _labels(("model_name",)), _sentence(queue_metrics.DROPPED[1])))
    return table(
        ("Name", "Type", "Labels", "Meaning"), ((f"`{name}`", kind, labels, text) for name, kind, labels, text in rows)
    )


def _values() -> str:
    rows = (
        ("`outcome`", "sequences in an engine", _labels(instruments.OUTCOMES)),
        ("`outcome`", "requests that never reached one", _labels(instruments.OUTSIDE)),
        ("`reason`", "refused requests", _labels(instruments.REASONS)),
        ("`policy`", "sequences that had their first output", _labels(instruments.POLICY_VALUES)),
        ("`state`", "live sequences", _labels(instruments.LIVE.values)),
    )
    return table(("Label", "Of", "Values"), rows)


def _edges() -> str:
    named: dict[str, list[str]] = {}
    for each in _histograms():
        named.setdefault(_ends(each), []).append(f"`{each.name}`")
    return table(("Buckets of", "End at, in seconds"), ((", ".join(names), ends) for ends, names in named.items()))


def _plans() -> str:
    rows = []
    for name, ends in LADDERS.items():
        plan = SeriesPlan(ladder(*ends))
        each = sum(series(instrument, plan.ratio) for instrument in INSTRUMENTS if instrument.starting)
        rows.append((name, ", ".join(plan.bands.names), f"{plan.ratio:g}", f"{each}"))
    return table(("Sets end at", "Length bands", "Ratio", "Series for each band in its own set"), rows)


def _histograms() -> Iterable[Instrument]:
    return (each for each in INSTRUMENTS if each.kind == "histogram")


def _ends(instrument: Instrument) -> str:
    if instrument.lowest is None:
        return ", ".join(f"{end:g}" for end in instrument.buckets)
    last = bounds(instrument, 1.2)[-1]
    return f"{instrument.lowest:g} to {last:g}, by the ratio below"


def _of_four(instrument: Instrument) -> str:
    if instrument.live:
        return _labels(instrument.labels)
    return f"the four, `{instrument.label}`" if instrument.label else "the four"


def _labels(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _sentence(text: str) -> str:
    return text[0].lower() + text[1:].rstrip(".")


TABLES: Tables = {
    "names": _metrics,
    "values": _values,
    "edges": _edges,
    "plans": _plans,
}


if __name__ == "__main__":
    write(PAGE, "docs-metrics", TABLES)
