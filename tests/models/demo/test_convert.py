"""The converted checkpoint is whole or absent, and computes what transformers computes from the GGUF file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo import convert as module
from ropeswitch.models.demo.convert import RECORD, convert
from tests.models.demo import tiny


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    tiny.write(path)
    return path


def _logits(ids: list[int], *arguments: Any, **named: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(*arguments, dtype=torch.float32, **named)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits


def test_logits_are_those_of_the_gguf_file(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", print)
    ids = [1, 5, 90, 40, 7, 2]
    assert torch.equal(_logits(ids, tmp_path / "out"), _logits(ids, tmp_path, gguf_file=source.name))


def test_the_checkpoint_has_what_a_server_needs(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(source, out, print)
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["max_position_embeddings"] == 128
    assert config["tie_word_embeddings"] and "quantization_config" not in config
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    generation = json.loads((out / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"]) == (1, 2)
    tensors = load_file(out / "model.safetensors")
    assert "model.embed_tokens.weight" in tensors and "lm_head.weight" not in tensors
    assert {each.dtype for each in tensors.values()} == {torch.float32}
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template == tiny.TEMPLATE
    # Digits stand alone, so the two spaces before them are one token.
    assert tokenizer.tokenize("he  12") == ["he", "ĠĠ", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("he  12")) == "he  12"


def test_a_finished_checkpoint_is_not_converted_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "out", print)
    monkeypatch.setattr(module, "_write", None)
    convert(source, tmp_path / "out", print)


@pytest.mark.parametrize("damage", ["weights", "record", "source"])
def test_a_damaged_or_older_checkpoint_is_converted_again(source: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    convert(source, out, print)
    before = (out / "model.safetensors").read_bytes()
    if damage == "weights":
        (out / "model.safetensors").write_bytes(before[:-1])
    elif damage == "record":
        (out / RECORD).write_text("{")
    else:
        tiny.write(source, seed=1)
    convert(source, out, print)
    assert ((out / "model.safetensors").read_bytes() == before) == (damage != "source")


def test_an_interrupted_conversion_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(gguf: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "_write", interrupted)
        convert(source, tmp_path / "out", print)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]
    convert(source, tmp_path / "out", print)
    assert (tmp_path / "out" / RECORD).is_file()


def test_what_a_killed_conversion_left_is_removed(source: Path, tmp_path: Path) -> None:
    left = tmp_path / ".out.partial"
    left.mkdir()
    (left / "old.safetensors").write_bytes(b"half")
    convert(source, tmp_path / "out", print)
    assert not left.exists() and not (tmp_path / "out" / "old.safetensors").exists()


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF no more")
    with pytest.raises(InputError, match=r"broken\.gguf: transformers cannot read it"):
        convert(path, tmp_path / "out", print)
    assert [each.name for each in tmp_path.iterdir()] == ["broken.gguf"]


def test_a_folder_of_somebody_elses_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not a converted model"):
        convert(source, tmp_path / "out", print)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"
