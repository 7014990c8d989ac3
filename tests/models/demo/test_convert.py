"""The checkpoint of `make demo` is whole or absent, and computes what transformers computes from the GGUF file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropeswitch.factors.errors import InputError
from ropeswitch.models.demo import convert as module
from ropeswitch.models.demo.convert import convert
from tests.models.demo import tiny


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    tiny.write(path)
    return path


def _logits(*arguments: Any, **named: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(*arguments, dtype=torch.float32, **named)
    with torch.no_grad():
        return model(torch.tensor([[1, 5, 90, 40, 7, 2]])).logits


def test_the_checkpoint_is_the_model_of_the_file_with_its_tokenizer(source: Path, tmp_path: Path) -> None:
    convert(source, out := tmp_path / "out", print)
    assert torch.equal(_logits(out), _logits(tmp_path, gguf_file=source.name))
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and "quantization_config" not in config
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 2
    tokenizer = AutoTokenizer.from_pretrained(out)
    # Digits stand alone, so the two spaces before them are one token.
    assert tokenizer.chat_template == tiny.TEMPLATE and tokenizer.tokenize("he  12") == ["he", "ĠĠ", "1", "2"]


def test_only_a_checkpoint_of_another_file_is_converted_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, out := tmp_path / "out", print)
    before = (out / "model.safetensors").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(module, "_write", None)
        convert(source, out, print)
    tiny.write(source, seed=1)
    convert(source, out, print)
    assert (out / "model.safetensors").read_bytes() != before


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
    # A killed process leaves its folder.
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "old.safetensors").write_bytes(b"half")
    convert(source, tmp_path / "out", print)
    assert not (tmp_path / ".out.partial").exists() and not (tmp_path / "out" / "old.safetensors").exists()


def test_the_reader_s_own_folder_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not a converted model"):
        convert(source, tmp_path / "out", print)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"
