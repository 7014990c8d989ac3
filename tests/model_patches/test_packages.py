"""Models whose code needs torchvision are refused, with the command that installs it; other models do not need it."""

import sys
from pathlib import Path

import pytest

from ropeswitch.model_patches.switch.config.packages import TORCHVISION, check_torchvision, command
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from tests.docs.pages import ROOT

# With an encoder, text alone from the same module, and one whose import error does not name the package by itself.
NEEDS = ("Qwen2VLForConditionalGeneration", "Qwen3_5ForCausalLM", "Gemma4ForConditionalGeneration")


@pytest.fixture(autouse=True)
def without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)


@pytest.mark.parametrize("architecture", NEEDS)
def test_refused(architecture: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{architecture} needs torchvision.*pip install torchvision=="):
        check_torchvision([architecture])


def test_a_broken_build_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One for another torch: importing it raises something else than for a missing package."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedError, match=r"Gemma4.* needs torchvision, .*\(operator torchvision::nms does not"):
        check_torchvision(["Gemma4ForConditionalGeneration"])
    check_torchvision(["LlamaForCausalLM", "NoSuchModel", "Terratorch"])


def test_the_command() -> None:
    """The release that the tests install."""
    assert f"torchvision=={TORCHVISION}\n" in (ROOT / "requirements" / "vision.txt").read_text(encoding="utf-8")
    assert command() == f"pip install torchvision=={TORCHVISION}+cpu --index-url https://download.pytorch.org/whl/cpu"
