"""The results files, one for each vLLM release with a JSON line for each architecture, and the words in them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path("models/results")
VERDICTS = EXACT, REFUSED, DIFFERS, NOT_COMPARED, NOT_ON_CPU, NO_CHECKPOINT = (
    "exact", "refused", "differs", "not compared", "not on CPU", "no checkpoint",
)  # fmt: skip
# Of stock vLLM, before its error.
STOPS = "stops: "
CHECKPOINT, STOCK, LADDER, REFERENCE = "making the checkpoint", "stock vLLM", "with a ladder", "the reference"
# The verdict on an architecture whose process ends by itself in a stage.
ENDED = {CHECKPOINT: NO_CHECKPOINT, STOCK: NOT_ON_CPU, LADDER: DIFFERS, REFERENCE: NOT_COMPARED}

Line = dict[str, Any]
"""One architecture's result; what is empty is left out.

    architecture, kind: its name in vLLM's registry; text, multimodal, or the Transformers backend
    verdict, reason: one of VERDICTS, and why it is not exact
    oracle: what the ladder was compared with
    stock: how stock vLLM compares with transformers within the window
    tokens: generated tokens that were compared
    error: the largest error in log-probability
    visible: the largest difference in log-probability that the choice of a set makes, of the two most similar sets
    cached: prompt tokens that the second run had from the prefix cache
    replaced: what torch computes for want of a CPU kernel, for stock vLLM and with the ladder
    seconds: duration of the measurement
"""
KEYS = "architecture kind verdict reason oracle stock tokens error visible cached replaced seconds".split()


def file_of(release: str) -> Path:
    """Where a release's results are."""
    return FOLDER / f"matrix-{release}.jsonl"


def read(path: Path) -> dict[str, Line]:
    """The results by architecture; none if there is no file."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["architecture"]: line for line in lines}


def store(path: Path, results: Mapping[str, Line]) -> None:
    """Write the results, sorted by name, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(json.dumps(results[name]) + "\n" for name in sorted(results)), encoding="utf-8")
    temporary.replace(path)
