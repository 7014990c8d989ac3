"""Texts for passkey-tiny, and a model that no search is possible with."""

import shutil
from pathlib import Path

import pytest

from tests.passkey_tiny.passkey import filler_text


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three texts of some 700 tokens, and a short one."""
    folder = tmp_path_factory.mktemp("search-texts")
    for number, sentences in enumerate((85, 85, 85, 3)):
        (folder / f"{number}.txt").write_text(filler_text(number, sentences))
    return folder


@pytest.fixture(scope="session")
def broken(plain: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """passkey-tiny with a weight that is no number."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("broken") / "nan"
    shutil.copytree(plain, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
