"""A config with both ``rope_parameters`` and ``rope_scaling``: the same rotation in both, or rejected."""

from typing import Any

import pytest

from ropeswitch.factors.errors import FactorError, UsageError
from ropeswitch.factors.hf_config import check_blocks, rope_parameters
from ropeswitch.server.model_folder import check_fields

KEPT = {"rope_type": "default", "rope_theta": 5e6}
ADDED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": KEPT, "rope_scaling": ADDED},
        {"text_config": {"rope_parameters": KEPT, "rope_scaling": ADDED}},
        {"rope_parameters": KEPT, "rope_scaling": {"type": "default"}},
        {"rope_parameters": ADDED, "rope_scaling": ADDED | {"factor": 8.0}},
    ],
)
def test_blocks_that_differ_are_rejected(config: dict[str, Any]) -> None:
    with pytest.raises(FactorError, match=r"rope_parameters\.\w+: .*, but rope_scaling\.\w+: .* Remove rope_scaling"):
        check_blocks(config)
    with pytest.raises(UsageError, match=r"config\.json: rope_parameters"):
        check_fields("config.json", config)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": KEPT},
        {"rope_parameters": KEPT, "rope_scaling": None},
        {"rope_parameters": KEPT, "rope_scaling": {}},
        {"rope_parameters": KEPT, "rope_scaling": {"type": "default", "rope_theta": 5e6}},
        {"rope_theta": 5e6, "rope_parameters": KEPT, "rope_scaling": {"rope_type": "default"}},
    ],
)
def test_blocks_that_agree_are_read(config: dict[str, Any]) -> None:
    check_blocks(config)
    assert rope_parameters(config)["rope_theta"] == 5e6
