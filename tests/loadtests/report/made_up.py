"""Made-up load tests for the tests of the report: exchanges, points, and results of the shape of results.json."""

from collections.abc import Sequence
from typing import Any

from ropeswitch.loadtests.client.assertions import Slo
from ropeswitch.loadtests.client.bands import Band, bands
from ropeswitch.loadtests.client.records import Exchange, Point, Run, Side

BANDS = bands("0-8k,8k-128k,128k-1M")
LENGTHS = (300, 1_000, 4_000, 20_000, 100_000, 900_000)


def exchange(index: int, prompt: int = 300, sent: float = 0.0, slower: float = 1.0, **changed: Any) -> Exchange:
    """A completed request of 20 tokens, whose first token takes longer the longer its prompt is."""
    ttft = slower * (0.02 + prompt / 20_000)
    itl = tuple(slower * (0.01 + 0.001 * (i % 3)) for i in range(19))
    given: dict[str, Any] = {"kind": "chat", "prompt_tokens": prompt, "max_tokens": 20, "output_tokens": 20}
    given |= {"due": sent - 0.002, "sent": sent, "latency": ttft + sum(itl), "ttft": ttft, "itl": itl}
    given |= {"status": "completed", "http_status": 200}
    return Exchange(index=index, **(given | changed))


def failure(index: int, error: str, sent: float = 1.0, prompt: int = 300, http: int | None = 503) -> Exchange:
    """A request that failed after half a second."""
    nothing: dict[str, Any] = {"status": "failed", "ttft": None, "itl": (), "output_tokens": 0}
    return exchange(index, prompt, sent, latency=0.5, http_status=http, error=error, **nothing)


def run(side: Side, exchanges: Sequence[Exchange], repetition: int = 0, **changed: Any) -> Run:
    """A run of these requests."""
    duration = max((each.sent + each.latency for each in exchanges), default=0.0)
    given: dict[str, Any] = {"rate": None, "concurrency": None, "duration": duration, "complete": True}
    given |= {"name": f"{side}-{repetition}", "side": side, "repetition": repetition, "exchanges": tuple(exchanges)}
    return Run(**(given | changed))


def point(label: str = "the workload", rate: float | None = None, baseline: bool = True, **changed: Any) -> Point:
    """Requests of all lengths against the target, and against a baseline at half its speed."""
    runs = []
    for side, slower in (("target", 1.0), ("baseline", 2.0))[: 1 + baseline]:
        found = [exchange(i, LENGTHS[i % len(LENGTHS)], 0.1 * i, slower) for i in range(24)]
        runs.append(run(side, found, rate=rate, **changed))  # type: ignore[arg-type]
    return Point(label, rate, tuple(runs))


def results(points: Sequence[Point], within: Sequence[Band] = BANDS, **changed: Any) -> dict[str, Any]:
    """What results.json holds of the points."""
    # It imports vLLM's benchmark, which takes seconds.
    from ropeswitch.loadtests.client.results import figures

    sides = [(found, found.side("target"), found.side("baseline")) for found in points]
    slos = [Slo.parse(text) for text in changed.get("slo", ())]
    given: dict[str, Any] = {"format": 1, "date": "2026-03-01T12:00:00+00:00", "model_id": "made-up/model"}
    given |= {"complete": True, "stopped": [], "slo": [], "assertions": []}
    given |= {
        "workload": {"name": "mixed", "about": "Chats beside books."},
        "settings": {"url": "http://target:8000", "baseline": None, "seed": 7, "repetitions": 1},
        "points": [
            {
                "label": found.label,
                "rate": found.rate,
                "target": figures(target, within, slos, ()) if target else None,
                "baseline": figures(baseline, within, slos, ()) if baseline else None,
                "ratios": {} if target and baseline else None,
            }
            for found, target, baseline in sides
        ],
    }
    if any(baseline for _, _, baseline in sides):
        given["settings"]["baseline"] = "http://baseline:8000"
    return given | changed
