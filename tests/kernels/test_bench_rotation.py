"""The rotation's benchmark: what it counts and refuses, and that no wrong side is timed."""

import pytest
import torch

from ropeswitch.loadtests.bench import rotation
from ropeswitch.loadtests.bench.rotation import MISTRAL, PHI_4_MINI, Case, Shape, alternate, main, steps

TINY = Shape("tiny", 4, 2, 64, 32)
CPU = torch.device("cpu")


def test_bytes_that_must_move() -> None:
    """Mistral-7B by hand: 40 heads of 128 bf16 values read and written are 20,480 bytes, a row is 512."""
    assert MISTRAL.bytes_moved(1, 32, 2) == 512 + 32 * (512 + 20480)
    assert PHI_4_MINI.bytes_moved(10, 1, 2) == 10 * (2 * 384 + 32 * 96 * 2 * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_sides_agree_with_float64_and_are_timed_in_turns(dtype: torch.dtype) -> None:
    with torch.inference_mode():
        found = steps(Case(TINY, dtype, False, 20), CPU, layers=2)
    assert list(found) == ["ours", "stock"]
    turns: list[str] = []
    alternate([lambda name=name: turns.append(name) for name in found], lambda: None, 0.0, 3)  # type: ignore[misc]
    assert turns == ["ours", "stock"] * 4


def test_a_wrong_rotation_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "ours", lambda *_: (lambda: None, lambda query, key: (query, key)))
    with pytest.raises(SystemExit, match=r"bench: ours is off by .* with tiny and 4 tokens: not timed"):
        steps(Case(TINY, torch.float32, False, 4), CPU, layers=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it would measure")
def test_without_a_gpu_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cuda"]) == 2
    assert "needs a CUDA GPU, but torch finds none" in capsys.readouterr().err
