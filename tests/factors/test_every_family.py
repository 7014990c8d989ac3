"""Every config class of Transformers: our reading of each place is its own, or a refusal."""

from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from tests.factors.test_as_transformers import ours, read_alike, theirs

BASE = 12345.0
LINEAR = {"rope_type": "linear", "factor": 3.0}
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 512}
FORMS: dict[str, dict[str, Any]] = {
    "base": {"rope_theta": BASE},
    "block": {"rope_parameters": {"rope_type": "default", "rope_theta": BASE}},
    "linear block": {"rope_parameters": LINEAR | {"rope_theta": BASE}},
    "linear scaling": {"rope_theta": BASE, "rope_scaling": LINEAR},
    "scaling with base": {"rope_scaling": LINEAR | {"rope_theta": BASE}},
    "yarn scaling": {"rope_theta": BASE, "rope_scaling": YARN},
    "rotated part": {"rope_theta": BASE, "partial_rotary_factor": 0.5, "rope_scaling": LINEAR},
    "by layer": {"rope_parameters": {"full_attention": LINEAR | {"rope_theta": BASE}, "sliding_attention": None}},
}
# Rope parameters by kinds of layers of their own, which our reader refuses or no engine rotates by a ladder, and latent
# attention, whose heads rotate all of qk_rope_head_dim.
OTHERS = frozenset({"deepseek_v4", "mistral4"})
# No engine decodes with these: encoders, and models without a cache of keys.
ENCODERS = ("vision", "encoder", "vit", "loftr", "moonshine", "mlcd", "pixtral", "t5gemma2")


@pytest.mark.parametrize("form", FORMS)
def test_every_family(form: str) -> None:
    read, wrong = 0, []
    # vLLM, if another test has imported it, adds classes of its own.
    known = {kind for kind, each in CONFIG_MAPPING.items() if each.__module__.startswith("transformers.")}
    for kind in sorted(known - OTHERS):
        # The rotation of the others is that of a config within theirs.
        by_layer = hasattr(CONFIG_MAPPING[kind], "layer_types")
        if (
            any(each in kind for each in ENCODERS)
            or CONFIG_MAPPING[kind].sub_configs
            or (form == "by layer" and not by_layer)
        ):
            continue
        config = {"model_type": kind, "max_position_embeddings": 1024} | FORMS[form]
        mine, upstream = ours(config), theirs(config)
        if mine is None or upstream is None or not upstream.get("rope_theta"):
            continue
        read += 1
        wrong += [f"{kind}: {each}" for each in read_alike(mine, upstream)]
    assert not wrong, "\n".join(wrong)
    assert read > 30 or form == "by layer"
