"""Published configurations, cut to the fields that size a model, and what the planner refuses."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import ROOT

Config = dict[str, Any]


def _read(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))


def _plan(name: str) -> Config:
    """Return a config that docs/planning.md plans for."""
    content: Config = json.loads((ROOT / "docs" / "plans" / name / "config.json").read_text(encoding="utf-8"))
    return content


_HUB: dict[str, Config] = _read("configs.yaml")
LLAMA2_7B: Config = _plan("llama2-7b")
# v0.2: the first version without the sliding window.
MISTRAL_7B: Config = _plan("mistral-7b")
# The factors themselves do not matter to a plan: 48 of them, as three quarters of a head's 128 values are rotated.
_FACTORS = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0 + i for i in range(48)]}
PHI4_MINI = _HUB["phi-4-mini"] | {"rope_scaling": _FACTORS}
QWEN2_5_7B, QWEN3_8B, QWEN3_30B_A3B = (_HUB[name] for name in ("qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b"))
# Made up: at TP 12 each KV head has 6 copies and 6 query heads, of which DCP 4 would take 4.
_TWO_HEADS = {"num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128}
SIX_PER_HEAD = MISTRAL_7B | _TWO_HEADS | {"intermediate_size": 14400, "vocab_size": 32256}
_OWN = {"llama2-7b": LLAMA2_7B, "mistral-7b": MISTRAL_7B, "phi-4-mini": PHI4_MINI}
DENSE = _OWN | {name: _HUB[name] for name in ("qwen2.5-7b", "qwen3-4b", "granite-8b")}
MOE = {name: _HUB[name] for name in ("qwen3-30b-a3b", "mixtral-8x7b", "phi-3.5-moe")}
ALL = DENSE | MOE
# Input and layouts that the planner refuses, and why.
REFUSED = _read("plan_refused.yaml")
