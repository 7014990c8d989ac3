"""`make bench-gpu` off a GPU: what it counts, prints and refuses, and its rotations on a tiny shape in the interpreter."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this machine")

from ropeswitch.loadtests.bench.gpu_rotations import Model, Step, Work, rotations, stock
from ropeswitch.loadtests.bench.kernel import Result, main, measure_shape, table

TINY = Model("tiny", 4, 2, 64, 32)


def results(ours: float, stock: float) -> list[Result]:
    return [
        Result("tiny", 8, "ours, in place", "graph", ours, 1.0),
        Result("tiny", 8, "stock", "graph", stock, 1.0),
        Result("tiny", 8, "stock, compiled", "graph", 2.0, 1.0),
        Result("tiny", 8, "flashinfer", "", None, 1.0, "not installed"),
    ]


def test_bytes_that_must_move() -> None:
    """Mistral-7B by hand: 40 heads of 128 bf16 values read and written are 20,480 bytes, a row is 512."""
    assert Model("Mistral-7B", 32, 8, 128, 128).bytes_moved(1, 32) == 512 + 32 * (512 + 20480)
    assert Model("Phi-4-mini", 24, 8, 128, 96).bytes_moved(10, 1) == 10 * (2 * 384 + 32 * 96 * 2 * 2)


def test_every_rotation_is_checked_and_timed(device: torch.device) -> None:
    """What runs here agrees with float64 within what is asked of it, in turns, and what is not installed is named."""
    ways = {name: make for name, make in rotations().items() if name != "stock, compiled"}
    work = Work.make(TINY, 20, 2, device, torch.bfloat16)
    turns: list[int] = []

    def timer(call: object, repetitions: int) -> float:
        turns.append(repetitions)
        return 2.0

    with torch.inference_mode():
        found = measure_shape(work, ways, 1e6, timer, None, rounds=2)
    by_name = {r.rotation: r for r in found}
    assert by_name.keys() == ways.keys()
    for name in ("ours, in place", "ours, new tensors", "stock", "vllm kernel"):
        assert (by_name[name].ms, by_name[name].mode, by_name[name].note) == (2.0, "eager", "")
    for name, make in ways.items():
        assert make is not None or by_name[name].note == "not installed"
    timed = sum(r.ms is not None for r in found)
    assert turns == [3] * timed + [10] * (2 * timed)


def test_a_wrong_rotation_is_not_timed(device: torch.device) -> None:
    work = Work.make(TINY, 4, 1, device, torch.float32)

    def idle(work: Work) -> Step:
        return lambda: work.every_layer(lambda query, key: (query, key))

    with pytest.raises(SystemExit, match=r"bench-gpu: idle is off by .* with tiny and 4 tokens: not timed"):
        measure_shape(work, {"idle": idle}, 1.0, lambda *_: 1.0, None, 1)
    assert work.worst_error(stock(work, compiled=False)) < 0.01


def test_the_table_has_a_row_for_each_result() -> None:
    assert len(table(results(1.0, 3.0)).splitlines()) == 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it would measure")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err
