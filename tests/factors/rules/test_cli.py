"""``ropeswitch factors rule``: files that the server takes, tables, and refusals in one line."""

from pathlib import Path

import pytest
from transformers import LlamaConfig

from ropeswitch.factors.file import load, parse
from ropeswitch.factors.rules.catalogue import RULES, Rule
from ropeswitch.factors.rules.rope import Rope, rope_from_config, rope_from_model
from ropeswitch.server.cli import main

SIZE = ["--rotary-dim", "128", "--rope-theta", "10000", "--original-length", "4k"]
LLAMA_3 = ["--rotary-dim", "128", "--rope-theta", "500000", "--original-length", "8k"]


@pytest.mark.parametrize("each", RULES, ids=lambda each: each.name)
def test_every_rule_makes_a_file(each: Rule, capsys: pytest.CaptureFixture[str]) -> None:
    name = each.name
    assert main(["factors", "rule", name, *SIZE, "--lengths", "16k,64k", "-o", "out.json", "--keep-original"]) == 0
    printed = capsys.readouterr().out
    content = load("out.json")
    assert content.ladder.names == ("original", "16k", "64k")
    assert [each.max_length for each in content.ladder.sets] == [4096, 16384, 65536]
    assert content.ladder.sets[0].factors == (1.0,) * 64
    assert content.theta == 10000.0 and name in (content.description or "")
    assert printed.startswith("wrote out.json\n") and "16k       16384   4 " in printed
    assert main(["factors", "rule", name, *SIZE, "--lengths", "16k,64k", "--keep-original", "--json"]) == 0
    assert parse(capsys.readouterr().out) == content


def test_a_table_shows_bases_the_critical_dimension_and_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V2's ratio is 40 at 32 times the window."""
    assert main(["factors", "rule", "theta", *LLAMA_3, "--lengths", "256k,1M"]) == 0
    printed = capsys.readouterr().out
    assert "critical dimension 70 of 128: " in printed and "283461213.5" in printed and "3580165449" in printed
    assert main(["factors", "rule", "deepseek-v2", *SIZE, "--length", "128k", "--scale", "40", "--keep-original"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in lines if line[:1] in (["original"], ["128k"])] == [
        ["original", "4096", "1"], ["128k", "131072", "40"]
    ]  # fmt: skip


def test_a_models_config_says_dimension_base_and_window(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    LlamaConfig(head_dim=128, max_position_embeddings=8192, rope_parameters=rope).save_pretrained(folder / "model")
    assert rope_from_model(folder / "model") == Rope(128, 500000.0, 8192)
    for path in ("model", "model/config.json"):
        assert main(["factors", "rule", "pi", "--model", path, "--scale", "16", "-o", "out.json", "--force"]) == 0
        [made] = load("out.json").ladder.sets
        assert (made.name, made.max_length, made.factors) == ("128k", 131072, (16.0,) * 64)
    capsys.readouterr()
    # A flag counts before the config.
    main(["factors", "rule", "pi", "--model", "model", "--original-length", "4k", "--length", "8k", "--json"])
    assert parse(capsys.readouterr().out).ladder.sets[0].factors[0] == 2.0


PHI_4 = {"hidden_size": 3072, "num_attention_heads": 24, "partial_rotary_factor": 0.75, "rope_theta": 10000.0}
PHI_4 |= {"original_max_position_embeddings": 4096, "max_position_embeddings": 131072}
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
DEEPSEEK = {"hidden_size": 5120, "num_attention_heads": 128, "qk_rope_head_dim": 64, "rope_theta": 10000}
DEFAULT = {"rope_theta": 1e6, "rope_type": "default"}
TEXT = {"head_dim": 128, "max_position_embeddings": 32768, "rope_parameters": DEFAULT}
SMALL = {"hidden_size": 128, "num_attention_heads": 4, "rope_theta": 1e4, "max_position_embeddings": 64}
RING = SMALL | {"qk_rope_head_dim": 16, "head_dim": 32, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        # Phi-4-mini, DeepSeek-V2 and a multimodal model, as their configs have it.
        (PHI_4 | {"rope_scaling": {"type": "longrope"}}, Rope(96, 10000.0, 4096)),
        (DEEPSEEK | {"max_position_embeddings": 163840, "rope_scaling": YARN}, Rope(64, 10000.0, 4096)),
        ({"text_config": TEXT}, Rope(128, 1e6, 32768)),
        # Latent attention rotates the part that it names; a part of no values, as in DeepSeek-OCR's config, is none.
        (SMALL | {"qk_rope_head_dim": 16, "head_dim": 48}, Rope(16, 1e4, 64)),
        (SMALL | {"qk_rope_head_dim": 0, "head_dim": 0}, Rope(32, 1e4, 64)),
        # In Ring 2.5's config the part is of the heads of linear attention.
        (RING | {"model_type": "bailing_hybrid"}, Rope(16, 1e4, 64)),
        (RING, Rope(8, 1e4, 64)),
    ],
)
def test_configs_of_published_models(config: dict[str, object], rope: Rope) -> None:
    assert rope_from_config(config) == rope
