"""Ladders of configs that already have scaling, of both layouts, against Hugging Face with each set's static scaling."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.exactness.auto_cases import AUTO, CASES, CHUNKED, LONGEST, PLAIN, WINDOW, check_twice, yarn_sets
from tests.exactness.batches import Start, full_but
from tests.exactness.static_reference import StaticReference
from tests.exactness.test_auto_ladder import checkpoint

YARN = PLAIN | {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": WINDOW}
LINEAR = PLAIN | {"rope_type": "linear", "factor": 8.0}
DYNAMIC = PLAIN | {"rope_type": "dynamic", "factor": 2.0}
LLAMA3 = PLAIN | {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": WINDOW,
}  # fmt: skip
ENDS = (128, 256, 512)


def base_times(ratio: float, pairs: int = 32) -> dict[str, Any]:
    """Plain rotation with the base that NTK-aware scaling of ``ratio`` gives, which transformers has no type for."""
    return PLAIN | {"rope_theta": PLAIN["rope_theta"] * ratio ** (pairs / (pairs - 1))}


@dataclass(frozen=True)
class Kind:
    """A config, a ladder, and what Hugging Face should have for each set."""

    sets: Mapping[int, Any]  # Rotary parameters by a set's longest sequence; None for the config's own.
    rope: Mapping[str, Any] = field(default_factory=lambda: PLAIN)  # The rotary parameters of the config.
    ladder: str = "auto"  # The value of ``--ladder``.
    family: str = "Qwen3"  # Of ``test_auto_ladder.MODELS``.
    longest: int = WINDOW  # ``max_position_embeddings`` of the config.
    key: Mapping[str, Any] = field(default_factory=dict)  # More fields of ``additional_config["ropeswitch"]``.


def added(**changes: Any) -> Kind:
    """YaRN with ``changes`` that a user added to a Qwen config, which every set above the window keeps."""
    return Kind(yarn_sets(PLAIN, ENDS, **changes), YARN | changes)


KINDS = {
    "yarn-added": added(),
    "yarn-attention-factor": added(attention_factor=1.3),
    "yarn-mscale": added(mscale=1.0, mscale_all_dim=0.4),
    "yarn-betas": added(beta_fast=8.0, beta_slow=0.5),
    "yarn-not-truncated": added(truncate=False),
    "yarn-none": Kind({LONGEST: None}, YARN, "none"),
    "yarn-unknown-family": Kind(yarn_sets(PLAIN), YARN, "yarn", "Llama"),
    "linear-pi": Kind({WINDOW: PLAIN} | {end: LINEAR | {"factor": end / WINDOW} for end in ENDS}, LINEAR, "pi"),
    "linear-none": Kind({LONGEST: None}, LINEAR, "none"),
    "dynamic": Kind({WINDOW: PLAIN} | {end: DYNAMIC for end in ENDS}, DYNAMIC),
    "llama3": Kind({LONGEST: None}, LLAMA3, "auto", "Llama", LONGEST),
    "plain-none": Kind({LONGEST: None}, ladder="none", longest=LONGEST),
    "ntk": Kind({64: PLAIN, 128: base_times(2), 512: base_times(8)}, ladder="ntk:2x,8x"),
    "yarn-odd-lengths": Kind(yarn_sets(PLAIN, (100, 300, 512)), ladder="yarn:100,300,512"),
    "native-window": Kind(yarn_sets(PLAIN), longest=256, key={"native_window": 64}),
}  # fmt: skip

# One of each formula; the others differ in parameters that tests/factors/ladders checks against transformers.
SOON = ("yarn-not-truncated", "linear-pi", "dynamic", "llama3")


@pytest.mark.parametrize("kind", full_but(SOON, KINDS))
def test_a_kind_of_config(start: Start, tmp_path: Path, kind: str) -> None:
    each = KINDS[kind]
    folder, _ = checkpoint(tmp_path, each.family, rope=dict(each.rope), max_position_embeddings=each.longest)
    reference = StaticReference.load(folder, each.sets)
    check_twice(start(folder, {"ladder": each.ladder} | each.key, **CHUNKED), reference)


def old_layout(folder: Path) -> None:
    """Rewrite a checkpoint's config as transformers 4 wrote it: ``rope_scaling`` beside ``rope_theta``."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type": rope.pop("rope_type")} | rope
    path.write_text(json.dumps(config))


def test_the_old_layout(start: Start, tmp_path: Path) -> None:
    each = KINDS["yarn-betas"]
    folder, _ = checkpoint(tmp_path, each.family, rope=dict(each.rope))
    reference = StaticReference.load(folder, each.sets)
    old_layout(folder)
    check_twice(start(folder, AUTO, **CHUNKED), reference, CASES[:4])
