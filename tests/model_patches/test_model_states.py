"""Models whose state on the V2 runner no ladder reaches are refused at the start, on both runners alike."""

import ast
from pathlib import Path

import pytest
import vllm
from transformers import DiffusionGemmaConfig
from vllm import EngineArgs

from ropeswitch.model_patches.switch.config.key import KEY
from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.engine_args import configure_from_key


@pytest.mark.parametrize("v2", ["0", "1"])
def test_a_diffusion_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, v2: str) -> None:
    """By its config alone, before vLLM refuses it on the V1 runner or loads it on the V2 runner."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", v2)
    DiffusionGemmaConfig(architectures=["DiffusionGemmaForBlockDiffusion"]).save_pretrained(tmp_path)
    args = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, additional_config={KEY: {"ladder": "auto"}})
    with pytest.raises(UnsupportedError, match=r"canvas_length: 256: .* keeps a state that no ladder reaches"):
        configure_from_key(args)


def test_no_other_model_has_such_a_state() -> None:
    """The others: of encoders with decoders, which ``check_engine`` refuses, and the one that a ladder's descends from."""
    states = {
        node.name
        for file in Path(vllm.__file__).parent.rglob("*.py")
        if "ModelState)" in (text := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "ModelState" for base in node.bases)
    }
    assert states == {"DefaultModelState", "DiffusionGemmaModelState", "EncoderDecoderModelState"}
