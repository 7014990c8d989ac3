"""Factor lists and configs to import: made up ones always, and the published ones where a file of them is at hand.

ROPESWITCH_TEST_PUBLISHED_FACTORS names a JSON file with ``longrope_v1_csv.factors`` (lists by name) and ``models`` (by name:
both lists, both lengths, ``rope_theta``, ``rope_type``); every one of its lists is then imported too.
"""

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "ROPESWITCH_TEST_PUBLISHED_FACTORS"


def published_lists() -> dict[str, list[float]]:
    rising = [1.0 + index**2 / 7 for index in range(64)]
    lists = {
        "rising": rising,
        "not-monotone": [*rising[:10], 3.0, 2.5, 1.5, *rising[13:]],
        "below-1": [0.9977997200264581, 0.5, *rising[2:]],
        "float32": [1.019999980926514, 1.080000042915344, 543.6799926757812],
        "whole": [1.0, 2.0],
    }
    return lists | _file().get("longrope_v1_csv", {}).get("factors", {})


def published_configs() -> dict[str, dict[str, Any]]:
    configs = {
        "longrope": _config("longrope", 4096, 131072, [1.0, 1.05, 0.99], [1.08, 4.5, 3]),
        "su": _config("su", 64, 512, [1, 1], [1, 8]),
        "window-not-extended": _config("longrope", 32786, 32768, [0.99, 1.2], [0.99, 1.2]),
    }
    for name, model in _file().get("models", {}).items():
        configs[name] = _config(
            model["rope_type"],
            model["original_max_position_embeddings"],
            model["max_position_embeddings"],
            model["short_factor"],
            model["long_factor"],
            model["rope_theta"],
        )
    return configs


def _config(
    kind: str, original: int, maximum: int, short: list[float], long: list[float], theta: float = 10000.0
) -> Any:
    return {
        "model_type": "phi3",
        "rope_theta": theta,
        "original_max_position_embeddings": original,
        "max_position_embeddings": maximum,
        "rope_scaling": {"type": kind, "short_factor": short, "long_factor": long},
    }


def _file() -> dict[str, Any]:
    path = os.environ.get(VARIABLE)
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
