"""Parameter counts against transformers' own models, built without memory, and active ones against model cards."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.weights import active_weights, parameter_count
from tests.deploy.configs import ALL, LLAMA2_7B, MIXTRAL_8X7B, QWEN3_30B_A3B, Config

BIASED = LLAMA2_7B | {"attention_bias": True, "mlp_bias": True}


@pytest.mark.parametrize("config", [*ALL.values(), BIASED], ids=[*ALL, "llama with biases"])
def test_as_transformers_counts(config: Config) -> None:
    fields = {key: value for key, value in config.items() if key not in ("model_type", "torch_dtype")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **fields))
    assert parameter_count(shape_from_config("c", config)) == model.num_parameters()


@pytest.mark.parametrize(("config", "billions"), [(MIXTRAL_8X7B, 12.9), (QWEN3_30B_A3B, 3.3)])
def test_active_parameters(config: Config, billions: float) -> None:
    """Model cards count the embedding as active too, although it is only looked up."""
    shape = shape_from_config("c", config)
    active = active_weights(shape, 1)
    assert (active.linear + active.other + shape.vocab * shape.hidden) / 1e9 == pytest.approx(billions, rel=2e-2)
