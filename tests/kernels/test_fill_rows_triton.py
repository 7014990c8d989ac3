"""The Triton fill makes the same rows as the float64 reference, whichever sets the step's requests are in."""

from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.kernels.angles import Frequencies, build_tables
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.kernels.reference import fill_rows_reference

pytest.importorskip("triton", reason="Triton has no build for this machine")

from ropeswitch.kernels.fill_rows_triton import DeviceTables, fill_rows_triton

END = 2_097_152
THETA, PAIRS = 10000.0, 24
PLAIN = Frequencies(tuple([1.02] * PAIRS))
LATE = Frequencies(tuple(np.geomspace(1.0, 512.0, PAIRS)), scale=1.4, start_tokens=128)
# Start tokens beyond one fine table.
LATER = Frequencies(tuple(np.geomspace(0.9, 60.0, PAIRS)[::-1]), scale=0.7, start_tokens=5000)
SETS = (PLAIN, LATE, LATER)
TABLES = build_tables(THETA, 2 * PAIRS, SETS, END)


@pytest.fixture(scope="module")
def tables(device: torch.device) -> DeviceTables:
    return DeviceTables.from_tables(TABLES, device)


def fill(
    tables: DeviceTables, positions: list[int], lengths: list[int], request_sets: list[int], padding: int = 0,
    index_type: torch.dtype = torch.int64,
) -> torch.Tensor:  # fmt: skip
    """The step's buffer after the fill; what was not written is NaN."""
    device = tables.fine.device
    rows = torch.full((len(positions) + padding + 2, tables.fine.shape[1]), torch.nan, device=device)
    fill_rows_triton(
        rows,
        torch.tensor(positions + [END - 1] * padding, dtype=torch.int64, device=device),
        torch.tensor(request_sets, dtype=index_type, device=device),
        torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device),
        tables,
    )
    return rows.cpu()


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_rows_of_a_mixed_step(tables: DeviceTables, data: st.DataObject) -> None:
    """Any requests, empty ones too, in any sets, padded or not; later rows keep what they hold."""
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=9))
    count = sum(lengths)
    places = st.one_of(
        st.integers(0, 9000), st.integers(0, END - 1), st.sampled_from([0, 127, 128, 4999, 5000, END - 1])
    )
    positions = data.draw(st.lists(places, min_size=count, max_size=count))
    request_sets = data.draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    index_type = data.draw(st.sampled_from([torch.int32, torch.int64]))
    rows = fill(tables, positions, lengths, request_sets, data.draw(st.integers(0, 9)), index_type)
    chosen = np.repeat(request_sets, lengths)
    expected = fill_rows_reference(np.array(positions, dtype=np.int64), chosen, THETA, 2 * PAIRS, SETS)
    # 2e-7 before the scale.
    assert ((rows[:count] - expected).abs() < 2e-7 * 1.4 + 1e-7).all()
    assert rows[count:].isnan().all()


def test_a_launch_fills_the_rows_of_all_layers(tables: DeviceTables) -> None:
    """Tables of three layers with a set each: the request's set is the first of each layer."""
    rows = torch.full((3, 7, 2 * PAIRS), torch.nan, device=tables.fine.device)
    places = [5, 4999, END - 1, 128]
    arguments = [torch.tensor(each, device=rows.device) for each in (places, [0, 0])]
    fill_rows_triton(rows, *arguments, torch.tensor([0, 3, 4], dtype=torch.int32, device=rows.device), tables)
    for layer, found in enumerate(rows.cpu()):
        expected = fill_rows_reference(np.array(places), np.full(4, layer), THETA, 2 * PAIRS, SETS)
        assert ((found[:4] - expected).abs() < 2e-7 * 1.4 + 1e-7).all() and found[4:].isnan().all()


def test_exact_at_the_last_position_and_every_power_of_two(device: torch.device) -> None:
    """Within 2e-7 of float64 before the scale, and no further from the CPU path: which multiply-adds fuse differs."""
    sets = tuple(Frequencies(entry.factors) for entry in SETS)
    host = build_tables(THETA, 2 * PAIRS, sets, END)
    tables = DeviceTables.from_tables(host, device)
    powers = sorted({(1 << bit) + offset for bit in range(22) for offset in (-1, 0, 1)} - {END, END + 1})
    assert powers[-1] == END - 1
    positions = powers * 3
    rows = fill(tables, positions, [len(powers)] * 3, [0, 1, 2])[: len(positions)]
    chosen = np.repeat([0, 1, 2], len(powers))
    places = np.array(positions, dtype=np.int64)
    assert (rows - fill_rows_reference(places, chosen, THETA, 2 * PAIRS, sets)).abs().max() < 2e-7
    by_torch = torch.empty(rows.shape)
    ExactRows(host).fill(by_torch, torch.from_numpy(places), torch.from_numpy(chosen))
    assert (rows - by_torch).abs().max() <= 2**-23


@pytest.mark.parametrize("requests", [1, 2, 3, 8, 9, 1000])
def test_every_token_finds_its_request(tables: DeviceTables, requests: int) -> None:
    lengths = [(7 * request) % 3 for request in range(requests - 1)] + [2]
    request_sets = [request % 2 for request in range(requests)]
    rows = fill(tables, [300_000] * sum(lengths), lengths, request_sets)
    plain, late = fill_rows_reference(np.array([300_000] * 2), np.array([0, 1]), THETA, 2 * PAIRS, SETS).float()
    expected = torch.stack([late if chosen else plain for chosen in np.repeat(request_sets, lengths)])
    assert torch.allclose(rows[: len(expected)], expected, atol=1e-6, rtol=0)


def test_what_does_not_fit_is_refused(tables: DeviceTables) -> None:
    device = tables.fine.device
    good = {
        "rows": torch.zeros(4, 2 * PAIRS, device=device),
        "positions": torch.zeros(4, dtype=torch.int64, device=device),
        "request_sets": torch.zeros(2, dtype=torch.int32, device=device),
        "query_start_loc": torch.tensor([0, 2, 4], dtype=torch.int32, device=device),
    }
    fill_rows_triton(**good, tables=tables)
    for name, bad, error in (
        ("rows", good["rows"].double(), TypeError),
        ("rows", torch.zeros(3, 2 * PAIRS, device=device), ValueError),
        ("rows", torch.zeros(4, 2 * PAIRS + 2, device=device), ValueError),
        ("positions", good["positions"].int(), TypeError),
        ("positions", torch.zeros(8, dtype=torch.int64, device=device)[::2], ValueError),
        ("request_sets", good["request_sets"].short(), TypeError),
        ("request_sets", good["request_sets"].float(), TypeError),
        ("query_start_loc", good["query_start_loc"].long(), TypeError),
        ("query_start_loc", good["query_start_loc"][:2], ValueError),
        ("positions", good["positions"].to("meta"), ValueError),
    ):
        with pytest.raises(error, match=f"^{name} has "):
            fill_rows_triton(**{**good, name: bad}, tables=tables)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA GPU")
def test_replayed_in_a_cuda_graph(tables: DeviceTables, device: torch.device) -> None:
    """One capture serves other positions, sets, lengths and fewer requests, as long as the buffers stay."""
    rows = torch.full((16, 2 * PAIRS), torch.nan, device=device)
    positions = torch.zeros(16, dtype=torch.int64, device=device)
    request_sets = torch.zeros(4, dtype=torch.int32, device=device)
    starts = torch.tensor([0, 4, 8, 12, 16], dtype=torch.int32, device=device)
    fill_rows_triton(rows, positions, request_sets, starts, tables)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fill_rows_triton(rows, positions, request_sets, starts, tables)
    generator = np.random.default_rng(0)
    for lengths in ([4, 4, 4, 4], [1, 0, 7, 3], [2, 2, 0, 0]):
        count = sum(lengths)
        places, chosen = generator.integers(0, END, count), generator.integers(0, 3, 4)
        rows.fill_(torch.nan)
        positions[:count] = torch.from_numpy(places)
        request_sets.copy_(torch.from_numpy(chosen))
        starts.copy_(torch.tensor([0, *accumulate(lengths)]))
        graph.replay()
        expected = fill_rows_reference(places, np.repeat(chosen, lengths), THETA, 2 * PAIRS, SETS)
        assert torch.allclose(rows[:count].cpu().double(), expected, atol=5e-7, rtol=0)
        assert rows[count:].isnan().all()
