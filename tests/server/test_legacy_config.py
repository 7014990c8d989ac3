"""The first Phi-3 configs say ``su`` and keep the window at the top level; they are served like today's."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.server.start import model_config
from tests.exactness import checkpoints


@pytest.fixture(scope="module")
def su(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkpoints.phi3(tmp_path_factory.mktemp("su"))
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    scaling = {"type": "su", "short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
    old = config | {"rope_scaling": scaling, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(old))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    return folder


def test_only_su_is_rewritten(su: Path) -> None:
    old = json.loads((su / "config.json").read_text())
    new = model_config.modern(old)
    assert new is not None and model_config.modern(new) is None
    assert new["rope_scaling"]["rope_type"] == "longrope" and "type" not in new["rope_scaling"]
    assert new["rope_scaling"]["original_max_position_embeddings"] == 64
    assert model_config.modern({"hidden_size": 3}) is None


def test_the_engine_reads_the_copy(su: Path) -> None:
    from ropeswitch.server.app import vllm_adapter

    args: Namespace = vllm_adapter.parse([str(su)], lambda parser: None)
    ladder = ladder_from_config(model_config.text_config(args))
    assert ladder is not None and [each.max_length for each in ladder.sets] == [64, 512]
    assert args.model == str(su) and args.tokenizer == args.hf_config_path
    copy = Path(args.hf_config_path)
    assert json.loads((copy / "generation_config.json").read_text()) == {"eos_token_id": [2, 5]}
