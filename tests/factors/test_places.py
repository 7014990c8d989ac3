"""A config that states its rotation in several places (places.yaml): the same in all of them, or refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ropeswitch.factors.errors import FactorError, UsageError
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.places import base_line, base_place, check_effect, check_places
from ropeswitch.server.start.model_folder import check_fields

Config = dict[str, Any]
ROWS = yaml.safe_load(Path(__file__).with_name("places.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("config", "places"), ROWS["disagree"], ids=str)
def test_places_that_disagree_are_named(config: Config, places: list[str]) -> None:
    with pytest.raises(FactorError) as refused:
        check_places(config)
    assert all(place in str(refused.value) for place in places), str(refused.value)
    with pytest.raises(UsageError, match=r"config\.json: "):
        check_fields("config.json", config)


@pytest.mark.parametrize("config", ROWS["agree"], ids=str)
def test_places_that_agree_are_accepted(config: Config) -> None:
    check_places(config)
    if "rope_type" in config.get("rope_parameters", {}):
        assert rope_parameters(config)["rope_theta"] == 5e6


@pytest.mark.parametrize(("config", "place"), ROWS["base"], ids=str)
def test_the_startup_line_says_where_the_base_comes_from(config: Config, place: str) -> None:
    assert base_line(5e6, base_place(config), "llama") == f"rope_theta 5000000, from {place}"


@pytest.mark.parametrize(("stated", "message"), ROWS["effect"], ids=str)
def test_what_a_config_or_an_override_states_is_in_effect(stated: Config, message: str | None) -> None:
    effect = {"rope_theta": 5e6, "rope_type": "default"}
    if message is None:
        check_effect(stated, effect)
        return
    with pytest.raises(FactorError, match=message):
        check_effect(stated, effect)
