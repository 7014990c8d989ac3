"""Models whose code needs torchvision are refused, with the torch to install it for; other models do not need it."""

import sys
from pathlib import Path

import pytest

from ropeswitch.model_patches.switch.config.packages import check_torchvision
from ropeswitch.model_patches.switch.config.settings import UnsupportedError

# With an encoder, text alone from the same module, and one whose import error does not name the package by itself.
NEEDS = ("Qwen2VLForConditionalGeneration", "Qwen3_5ForCausalLM", "Gemma4ForConditionalGeneration")


@pytest.fixture(autouse=True)
def without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)


@pytest.mark.parametrize("architecture", NEEDS)
def test_refused(architecture: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{architecture} needs torchvision.*install the build for torch 2"):
        check_torchvision([architecture])


def test_a_broken_build_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One for another torch: importing it raises something else than for a missing package."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedError, match=r"Gemma4.* needs torchvision, .*\(operator torchvision::nms does not"):
        check_torchvision(["Gemma4ForConditionalGeneration"])
    check_torchvision(["LlamaForCausalLM", "NoSuchModel", "Terratorch"])
