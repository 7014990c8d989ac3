"""The verdict of a load test in words, for the report and the terminal."""

from collections.abc import Mapping
from typing import Any, Literal

from ropeswitch.loadtests.report.reading import SIDES, sides
from ropeswitch.loadtests.report.written import plural, share

Tone = Literal["good", "bad", "warn"]


def tone(results: Mapping[str, Any]) -> Tone:
    """Return ``bad`` if an assertion failed, ``warn`` for other problems of the test or the target, otherwise ``good``.

    Other problems are a test that stopped early or has no points, failed requests, wrong answers and, without assertions,
    missed objectives.
    """
    if any(not assertion["ok"] for assertion in results["assertions"]):
        return "bad"
    misses = any(each < 1 for each in _good_shares(results)) and not results["assertions"]
    return "good" if results["complete"] and results["points"] and not misses and not _problems(results) else "warn"


def headline(results: Mapping[str, Any]) -> str:
    """Return one line with the outcome of the assertions, and the target's failed, wrong and miscounted requests."""
    broken = sum(not assertion["ok"] for assertion in results["assertions"])
    every = len(results["assertions"])
    if broken:
        said = f"{broken} of {plural(every, 'assertion')} failed"
    elif every:
        said = "The assertion holds" if every == 1 else f"All {every} assertions hold"
    else:
        shares = _good_shares(results)
        said = f"{share(min(shares))} of requests meet the objectives" if shares else "No assertions were made"
    return "; ".join([said, *_problems(results)])


def _good_shares(results: Mapping[str, Any]) -> list[float]:
    targets = [point["target"] for point in results["points"] if point["target"] is not None]
    return [target["good_share"] for target in targets if target.get("good_share") is not None]


def _problems(results: Mapping[str, Any]) -> list[str]:
    targets = [point["target"] for point in results["points"] if point["target"] is not None]
    failed, wrong, miscounted = (sum(each[key] for each in targets) for key in ("failed", "wrong", "miscounted"))
    found = [f"{plural(failed, 'request')} failed"] if failed else []
    found += [f"{plural(wrong, 'answer')} wrong"] if wrong else []
    return found + ([f"{plural(miscounted, 'prompt')} counted differently by the server"] if miscounted else [])


def stops(results: Mapping[str, Any]) -> str:
    """Return why the test is incomplete."""
    return f"Stopped early: {'; '.join(results['stopped']) or 'no reason recorded'}."


def subject(results: Mapping[str, Any], assertion: Mapping[str, Any]) -> str:
    """Return the assertion as written, preceded by its point if there are several."""
    return f"{assertion['point']}: {assertion['text']}" if len(results["points"]) > 1 else str(assertion["text"])


def tally(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each server: its completed requests, failures and correct answers, over all points."""
    lines = []
    for side in SIDES:
        found = [figures for point in results["points"] for name, figures in sides(point) if name == side]
        if found:
            completed, failed, checked, correct, cancelled, interrupted, miscounted = (
                sum(figures[key] for figures in found)
                for key in ("completed", "failed", "checked", "correct", "cancelled", "interrupted", "miscounted")
            )
            parts = [f"{plural(completed, 'request')} completed", f"{failed:,} failed"]
            parts += [f"{cancelled:,} cancelled by the client"] if cancelled else []
            parts += [f"{interrupted:,} interrupted by the run's end"] if interrupted else []
            parts += [f"{miscounted:,} with prompts counted differently by the server"] if miscounted else []
            judged = f"{correct:,} of {plural(checked, 'checked answer')} correct"
            parts.append(judged if checked else "no answers checked")
            lines.append(f"{side}: {', '.join(parts)}")
    return lines
