"""The Triton rotation equals the float64 reference, rounded once, for every layout a model can hand over."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.kernels.reference import apply_rows_reference
from tests.kernels.conftest import outside_the_interpreter, rounding

pytest.importorskip("triton", reason="Triton has no build for this machine")

import triton

from ropeswitch.kernels.apply_rows_triton import apply_rows_kernel, apply_rows_triton, apply_rows_triton_

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HEAD_SIZES = [32, 64, 80, 96, 112, 128, 192, 256]


@dataclass(frozen=True)
class Case:
    """Queries, keys and values that are slices of one projection, and rows of which the tokens use a slice."""

    projection: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor | None
    rows: torch.Tensor
    row_numbers: torch.Tensor
    head_size: int
    neox: bool

    def expected(self, values: torch.Tensor) -> torch.Tensor:
        """In float64, of the values as they are now."""
        return apply_rows_reference(self.rows[self.row_numbers].cpu(), values.cpu(), self.head_size, self.neox)

    @property
    def arguments(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, int, bool]:
        return self.query, self.key, self.rows, self.row_numbers, self.head_size, self.neox


def make(
    device: torch.device, tokens: int, heads: int, key_heads: int, head_size: int, rotary: int, dtype: torch.dtype,
    neox: bool, by_head: bool = False, first_row: int = 0, shuffle: bool = False,
) -> Case:  # fmt: skip
    generator = torch.Generator().manual_seed(tokens + 10 * heads + head_size)
    angles = torch.rand(first_row + tokens + 1, rotary // 2, generator=generator) * 7
    numbers = torch.arange(first_row + tokens)
    if shuffle:
        numbers = torch.randperm(len(numbers), generator=generator)
    projection = torch.randn(tokens, (heads + 2 * key_heads) * head_size, generator=generator).to(device, dtype)
    query, key, _ = projection.split([heads * head_size, key_heads * head_size, key_heads * head_size], dim=-1)
    if by_head:
        query, key = query.unflatten(1, (-1, head_size)), key.unflatten(1, (key_heads, head_size))
    return Case(
        projection=projection,
        query=query,
        key=key if key_heads else None,
        rows=(torch.cat((angles.cos(), angles.sin()), dim=-1) * 1.19).to(device),
        row_numbers=numbers.to(device)[first_row:],
        head_size=head_size,
        neox=neox,
    )


def assert_rounded_once(rotated: torch.Tensor, expected: torch.Tensor) -> None:
    """Off by one rounding to the type, and what float32 arithmetic may add."""
    allowed = rounding(rotated.dtype) * expected.abs() + 2e-6
    assert ((rotated.cpu().double() - expected).abs() <= allowed).all()


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_layout(device: torch.device, data: st.DataObject) -> None:
    """Any heads, sizes, types, strides and row numbers, in place and into new tensors; nothing else is written."""
    head_size = data.draw(st.sampled_from(HEAD_SIZES))
    case = make(
        device,
        tokens=data.draw(st.integers(0, 4)),
        heads=data.draw(st.sampled_from([1, 2, 3, 7, 24])),
        key_heads=data.draw(st.integers(0, 3)),
        head_size=head_size,
        rotary=data.draw(st.one_of(st.just(head_size), st.integers(1, head_size // 2).map(lambda pairs: 2 * pairs))),
        dtype=data.draw(st.sampled_from(DTYPES)),
        neox=data.draw(st.booleans()),
        by_head=data.draw(st.booleans()),
        first_row=data.draw(st.integers(0, 3)),
        shuffle=data.draw(st.booleans()),
    )
    query, key = case.query, case.key
    expected = case.expected(query), None if key is None else case.expected(key)
    before = case.projection.clone()
    rotated, rotated_key = apply_rows_triton(*case.arguments)
    assert torch.equal(case.projection, before)
    assert rotated.shape == query.shape and rotated.dtype == query.dtype and rotated.is_contiguous()
    assert (rotated_key is None) == (key is None)
    assert_rounded_once(rotated, expected[0])

    apply_rows_triton_(*case.arguments)
    assert torch.equal(query, rotated)
    end = query.flatten(1).shape[1]
    if key is not None and rotated_key is not None:
        assert_rounded_once(rotated_key, expected[1])
        assert torch.equal(key, rotated_key)
        end += key.flatten(1).shape[1]
    assert torch.equal(case.projection[:, end:], before[:, end:])


def test_heads_may_lie_apart(device: torch.device) -> None:
    """As after a projection that lays out all tokens of one head first; only the values of a head lie side by side."""
    case = make(device, 3, 4, 2, 64, 32, torch.float32, True)
    query = torch.randn(4, 3, 64, device=device).transpose(0, 1)
    assert not query.is_contiguous()
    expected = apply_rows_reference(case.rows[case.row_numbers].cpu(), query.cpu(), 64, True)
    arguments = case.rows, case.row_numbers, 64, True
    assert_rounded_once(apply_rows_triton(query, None, *arguments)[0], expected)
    apply_rows_triton_(query, None, *arguments)
    assert_rounded_once(query, expected)


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    case = make(device, 4, 2, 1, 64, 32, torch.float32, True)
    good = dict(zip(("query", "key", "rows", "row_numbers", "head_size", "neox"), case.arguments, strict=True))
    apply_rows_triton_(**good)
    wide = torch.zeros(4, 128, device=device)
    for name, bad, error in (
        ("query", case.query.double(), TypeError),
        ("query", case.query[:3], ValueError),
        ("query", wide[:, :127], ValueError),
        ("query", wide.T.contiguous().T, ValueError),
        ("key", case.query.bfloat16(), TypeError),
        ("key", wide[:3], ValueError),
        ("key", wide.unflatten(1, (4, 32)), ValueError),
        ("rows", case.rows.double(), TypeError),
        ("rows", case.rows[:, :31].contiguous(), ValueError),
        ("rows", case.rows[:, ::2], ValueError),
        ("rows", torch.zeros(8, 66, device=device), ValueError),
        ("row_numbers", case.row_numbers.int(), TypeError),
        ("row_numbers", torch.arange(8, device=device)[::2], ValueError),
    ):
        for op in (apply_rows_triton, apply_rows_triton_):
            with pytest.raises(error, match=r"(query|key|rows|row_numbers) (has|is) .*must be"):
                op(**{**good, name: bad})


def layer(case: Case) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A projection, its split, the rotation, and the views that attention takes."""
    sizes = [4 * 32, 2 * 32, 2 * 32]

    def forward(
        hidden: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        query, key, value = (hidden @ weight).split(sizes, dim=-1)
        query, key = apply_rows_triton(query, key, rows, numbers, 32, case.neox)
        return query.view(-1, 4, 32), key.view(-1, 2, 32), value.view(-1, 2, 32)

    return forward


@pytest.mark.parametrize("neox", [True, False])
def test_compiles_as_one_node(device: torch.device, neox: bool) -> None:
    """One graph without breaks, tokens of any number, the same values as without a compiler."""
    case = make(device, 5, 4, 2, 32, 16, torch.float32, neox)
    forward = layer(case)
    torch._dynamo.reset()
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager", dynamic=True)
    weight = torch.randn(16, 8 * 32, device=device)
    with torch.inference_mode():
        for tokens in (5, 3):
            arguments = torch.randn(tokens, 16, device=device), weight, case.rows, case.row_numbers[:tokens]
            for got, wanted in zip(compiled(*arguments), forward(*arguments), strict=True):
                assert torch.equal(got, wanted)
    torch._dynamo.reset()


def test_a_cpu_tensor_is_refused_outside_the_interpreter() -> None:
    """In a process of its own: here the ops are interpreted where there is no GPU."""
    code = """
import torch
from ropeswitch.kernels.apply_rows_triton import apply_rows_triton, apply_rows_triton_
for op in (apply_rows_triton, apply_rows_triton_):
    try:
        op(torch.zeros(2, 64), None, torch.zeros(2, 64), torch.arange(2), 64, True)
    except RuntimeError as error:
        print(error)
"""
    lines = outside_the_interpreter("-c", code).splitlines()
    assert len(lines) == 2 and all("got tensors on device 'cpu', but runs on a GPU only" in line for line in lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU nothing is interpreted")
def test_the_interpreter_is_on_for_these_ops_only() -> None:
    """Neither kernels imported later nor processes started by other tests see it."""
    assert not isinstance(apply_rows_kernel, triton.JITFunction)
    if "TRITON_INTERPRET" not in os.environ:
        assert triton.knobs.runtime.interpret is False and triton.knobs.propagate_env is True
        assert isinstance(triton.jit(assert_rounded_once), triton.JITFunction)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA GPU")
@pytest.mark.parametrize("op", [apply_rows_triton, apply_rows_triton_])
def test_replayed_in_a_cuda_graph(device: torch.device, op: Callable[..., object]) -> None:
    case = make(device, 16, 8, 2, 128, 96, torch.bfloat16, True)
    values, rows = case.projection.clone(), case.rows.clone()
    op(*case.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new = op(*case.arguments)
    for _ in range(2):
        case.projection.copy_(values)
        case.rows.copy_(rows := rows.roll(1, 0))
        expected = case.expected(case.query)
        graph.replay()
        assert_rounded_once(new[0] if isinstance(new, tuple) else case.query, expected)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("as_vllm", [True, False])
def test_what_inductor_copies(device: torch.device, as_vllm: bool) -> None:
    """The op for compiled code costs no copy of the projection, with vLLM's setting either."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    case = make(device, 5, 4, 2, 32, 32, torch.float32, True)
    forward = layer(case)
    arguments = torch.randn(5, 16, device=device), torch.randn(16, 8 * 32, device=device), case.rows, case.row_numbers
    torch._dynamo.reset()
    with torch.inference_mode(), config.patch(enable_auto_functionalized_v2=not as_vllm, force_disable_caches=True):
        got, [code] = run_and_get_code(torch.compile(forward, fullgraph=True), *arguments)
        for tensor, wanted in zip(got, forward(*arguments), strict=True):
            assert torch.allclose(tensor, wanted, atol=1e-5)
    torch._dynamo.reset()
    assert len(re.findall(r"torch\.ops\.ropeswitch\.apply_rows\.default\(", code)) == 1
    assert "clone" not in code
