"""Computes ``results.json``: the figures of vLLM's benchmark, by its code, for all requests and for each length band."""

import contextlib
import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import BenchmarkMetrics, calculate_metrics

from ropeswitch.loadtests.client.assertions import Slo
from ropeswitch.loadtests.client.bands import Band
from ropeswitch.loadtests.client.records import Exchange, Run
from ropeswitch.loadtests.report.series import crosses, tpot

# 100 is reported as max.
PERCENTILES = (90.0, 95.0, 99.0, 100.0)
TIMED = ("ttft", "tpot", "itl")
# Figures that have upstream's names.
SAME = (
    "completed", "failed", "request_throughput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests",
)  # fmt: skip
LATENCIES = (*TIMED, "e2el")
MS = 1000.0
Figures = dict[str, Any]


def figures(runs: Sequence[Run], bands: Sequence[Band], slos: Sequence[Slo], limits: Sequence[int]) -> Figures:
    """Compute the figures of one server's runs at one point, all repetitions together.

    Returns:
        Upstream's keys, those added here (see the table in docs/loadtests.md), and the same for each band with requests.
    """
    exchanges = [each for run in runs for each in run.exchanges]
    # Each run's times start at 0. Upstream counts requests within a second, so runs must not overlap.
    offsets: dict[int, float] = {}
    at = 0.0
    for run in runs:
        offsets.update({id(each): at for each in run.exchanges})
        at += run.duration + 2
    seconds = sum(run.duration for run in runs)
    found = _figures(exchanges, offsets, seconds, slos, limits)
    by_band = {band: [each for each in exchanges if each.prompt_tokens in band] for band in bands}
    found["bands"] = {
        str(band): _figures(inside, offsets, seconds, slos, limits) for band, inside in by_band.items() if inside
    }
    return found


def _figures(
    exchanges: Sequence[Exchange], offsets: dict[int, float], seconds: float, slos: Sequence[Slo], limits: Sequence[int]
) -> Figures:
    whole = [each for each in exchanges if each.status == "completed"]
    failed = [each for each in exchanges if each.status == "failed"]
    every = _upstream(whole, failed, offsets, seconds)
    # Upstream expects streamed answers; others have no time to first token.
    streamed = _upstream([each for each in whole if each.streamed], [], offsets, seconds)
    kept = [is_kept for each in (*whole, *failed) if (is_kept := is_good(each, slos)) is not None]
    good = sum(kept)
    judged = [each.correct for each in whole if each.correct is not None]
    found: Figures = {
        "duration": seconds,
        "total_input_tokens": every.total_input,
        "total_output_tokens": every.total_output,
        "request_goodput": good / seconds if slos and seconds else None,
        **{name: getattr(every, name) for name in SAME},
    }
    for name in LATENCIES:
        found |= _latency(name, streamed if name in TIMED else every)
    if not any(each.output_tokens > 1 for each in whole if each.streamed):
        found |= dict.fromkeys((key for key in found if key.endswith("_tpot_ms")), None)
    if not any(each.itl for each in whole if each.streamed):
        found |= dict.fromkeys((key for key in found if key.endswith("_itl_ms")), None)
    return found | {
        "cancelled": sum(each.status == "cancelled" for each in exchanges),
        "interrupted": sum(each.status == "interrupted" for each in exchanges),
        "checked": len(judged),
        "correct": sum(judged),
        "wrong": len(judged) - sum(judged),
        "correct_share": sum(judged) / len(judged) if judged else None,
        "miscounted": sum(each.counted_prompt_tokens not in (None, each.prompt_tokens) for each in whole),
        "crossings": sum(crosses(each, limits) for each in whole),
        "good_share": good / len(kept) if slos and kept else None,
        **_spread("lateness", [each.lateness for each in exchanges]),
        **_spread("ttft_due", [each.ttft + each.lateness for each in whole if each.ttft is not None]),
    }


def is_good(exchange: Exchange, slos: Sequence[Slo]) -> bool | None:
    """Return whether a request meets every objective of its band; None if it has none of the bounded latencies.

    By upstream's definitions, the time per output token of a one-token answer is 0. A failed request is not good. An answer
    that was not streamed only has an end-to-end latency.
    """
    if exchange.status == "failed":
        return False
    values = {"ttft": exchange.ttft, "tpot": tpot(exchange), "e2el": exchange.latency}
    meant = [slo for slo in slos if slo.band is None or exchange.prompt_tokens in slo.band]
    bounds = [(values[name], bound) for slo in meant for name, bound in slo.bounds.items()]
    if meant and all(value is None for value, _ in bounds):
        return None
    return all(value is None or value <= bound for value, bound in bounds)


def _upstream(
    whole: Sequence[Exchange], failed: Sequence[Exchange], offsets: dict[int, float], seconds: float
) -> BenchmarkMetrics:
    outputs = [
        RequestFuncOutput(
            success=each.status == "completed",
            latency=each.latency,
            output_tokens=each.output_tokens,
            ttft=each.ttft or 0.0,
            itl=list(each.itl),
            prompt_len=each.counted_prompt_tokens or each.prompt_tokens,
            start_time=offsets[id(each)] + each.sent,
        )
        for each in (*whole, *failed)
    ]
    # It prints a hint on plots and the first failures, and warns if nothing completed; the report shows these.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics, _ = calculate_metrics([], outputs, max(seconds, 1e-9), None, list(PERCENTILES), {})
    return metrics


def _latency(name: str, metrics: BenchmarkMetrics) -> Figures:
    """Return a latency's statistics; None if no request completed, where upstream's 0 would satisfy any limit."""
    found = {f"{part}_{name}_ms": getattr(metrics, f"{part}_{name}_ms") for part in ("mean", "median", "std")}
    found |= {
        f"{_word(percentile)}_{name}_ms": value for percentile, value in getattr(metrics, f"percentiles_{name}_ms")
    }
    return {key: float(value) if metrics.completed else None for key, value in found.items()}


def _spread(name: str, seconds: Sequence[float]) -> Figures:
    if not seconds:
        return {}
    values = MS * np.array(seconds)
    found = {"mean": values.mean(), "median": np.median(values), "std": values.std()}
    found |= {_word(percentile): np.percentile(values, percentile) for percentile in PERCENTILES}
    return {f"{part}_{name}_ms": float(value) for part, value in found.items()}


def _word(percentile: float) -> str:
    return "max" if percentile == 100 else f"p{percentile:g}"


def ratios(target: Figures, baseline: Figures) -> dict[str, float]:
    """Divide each figure of the target by the baseline's, if both are numbers and the latter is not 0."""
    return {
        key: value / baseline[key]
        for key, value in target.items()
        if isinstance(value, int | float) and isinstance(baseline.get(key), int | float) and baseline[key]
    }
