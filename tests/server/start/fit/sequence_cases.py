"""``--max-num-seqs`` against host memory and GPU memory, and what vLLM's model runners reserve for each sequence."""

from typing import Any

import pytest
import torch
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.block_table import get_block_table_width
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.mm.rope import RopeState
from vllm.v1.worker.gpu.states import RequestState
from vllm.v1.worker.gpu_input_batch import InputBatch

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.start.fit.memory import GIB, PROCESSES, Memory
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory
from ropeswitch.server.start.fit.sequences import Machine, check, taken_beside_gpus
from tests.server.start.fit.test_cpu import flags

H100 = Machine("cuda", devices=8, device_bytes=79 * GIB, v2=True, sequences=1024)
LONG = SequenceMemory(max_model_len=2 << 20)
CPU = torch.device("cpu")
LENGTH, SEQUENCES, STEP = 5000, 7, 64


def test_the_figures_of_two_million_tokens() -> None:
    """On an H100, 8 GiB of pinned memory a rank, a power of two, and two block tables of 512 MiB on each GPU."""
    assert LONG.host_bytes(1024) == LONG.host_bytes(513) == 8 * GIB and LONG.host_bytes(512) == 4 * GIB
    assert LONG.device_bytes(1024) == GIB
    # Context-parallel ranks share the blocks.
    assert SequenceMemory(2 << 20, decode_context=4).device_bytes(1024) == GIB // 4


@pytest.mark.parametrize(("block_size", "axes"), [(16, 0), (48, 3), (128, 0)])
def test_v2_reserves_what_is_counted(monkeypatch: pytest.MonkeyPatch, block_size: int, axes: int) -> None:
    """All else that V2's states pin are numbers of one sequence each. Memory cannot be pinned without a GPU."""
    pinned: list[int] = []
    zeros = torch.zeros

    def counted(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        array = zeros(*size, **options)
        if pin_memory:
            pinned.append(array.nbytes)
        return array

    monkeypatch.setattr(buffer_utils.torch, "zeros", counted)
    monkeypatch.setattr(buffer_utils, "get_accelerator_view_from_cpu_tensor", lambda array: array)
    each = SequenceMemory(LENGTH, block_size, device="cpu", axes=axes)
    RequestState(SEQUENCES, LENGTH, STEP, 0, 100, CPU)
    if axes:
        RopeState(axes, SEQUENCES, STEP, LENGTH, CPU)
    blocks = -(-LENGTH // block_size)
    tables = BlockTables([block_size], SEQUENCES, STEP, [get_block_table_width(blocks, block_size)], CPU)
    [table], [for_inputs] = tables.block_tables, tables.input_block_tables
    assert table.gpu.nbytes + for_inputs.nbytes == each.device_bytes(SEQUENCES)
    large = [size for size in pinned if size > SEQUENCES * LENGTH]
    assert sum(large) == each.host_bytes(SEQUENCES) - each.device_bytes(SEQUENCES)
    assert sum(pinned) < 1.1 * sum(large)


@pytest.mark.parametrize("block_size", [16, 48, 128])
def test_v1_reserves_what_is_counted(block_size: int) -> None:
    """On a CPU the block table's two copies count, of which one is freed after the start."""
    blocks = -(-LENGTH // block_size)
    batch = InputBatch(SEQUENCES, LENGTH, STEP, CPU, 100, [block_size], [blocks])
    [table] = batch.block_table.block_tables
    assert isinstance(table.block_table, CpuGpuBuffer)
    both = table.block_table.cpu.nbytes + table.block_table.gpu.nbytes
    counted = SequenceMemory(LENGTH, block_size, v2=False, device="cpu").host_bytes(SEQUENCES)
    assert batch.token_ids_cpu.nbytes + batch.is_token_ids.nbytes + both == counted


NODES = "^--max-num-seqs: 1024 does not fit: .*; use at most 512, the same on every node"


@pytest.mark.parametrize(
    ("given", "free", "expected"),
    [
        ({}, 200, None),
        ({"max_num_seqs": 512}, 40, None),
        ({"max_num_seqs": 600}, 40, r"^--max-num-seqs: 600 does not fit: .* reserve 64.0 GiB.*; use at most 512, "),
        ({}, 2, r"^--max-num-seqs: 1 sequences of 2097152 .* use a shorter --max-model-len"),
        # Ranks of other machines do not count; Ray has no number of nodes.
        ({"max_num_seqs": 1024, "pipeline_parallel_size": 2, "nnodes": 4}, 40, None),
        ({"max_num_seqs": 512, "tensor_parallel_size": 16}, 40, None),
        # Nodes of one server are not lowered each by itself.
        ({"nnodes": 2, "pipeline_parallel_size": 2}, 36, NODES),
        ({"headless": True}, 36, NODES),
        ({"data_parallel_size": 2, "data_parallel_rank": 1}, 36, NODES),
    ],
)
def test_sequences_that_do_not_fit_the_host_are_refused(given: dict[str, Any], free: int, expected: str | None) -> None:
    args = flags(**{"tensor_parallel_size": 8} | given)
    memory = Memory(128 * GIB, free * GIB + 1024)
    if expected is None:
        assert check(args, H100, memory, LONG, PROCESSES) == []
    else:
        with pytest.raises(UsageError, match=expected):
            check(args, H100, memory, LONG, PROCESSES)
    assert args.max_num_seqs == given.get("max_num_seqs")


def test_a_default_that_does_not_fit_is_lowered() -> None:
    args = flags(tensor_parallel_size=8)
    [line] = check(args, H100, Memory(total=128 * GIB, free=40 * GIB), LONG, taken=PROCESSES + 4 * GIB)
    # 34 GiB are left: 32 GiB are 512 sequences.
    assert args.max_num_seqs == 512 and "reserve 64.0 GiB" in line and "34.0 GiB is left" in line


def test_block_tables_against_what_utilization_leaves() -> None:
    """V2 makes them when keys and values have taken their share of the GPU."""
    plenty = Memory(4096 * GIB, 4096 * GIB)
    with pytest.raises(UsageError, match=r"take 8.0 GiB of each GPU, .* leaves 6.3 GiB for them; use at most 6471"):
        check(flags(max_num_seqs=8192), H100, plenty, LONG, PROCESSES)
    args = flags(gpu_memory_utilization=0.99)
    [line] = check(args, H100, plenty, LONG, PROCESSES)
    assert args.max_num_seqs == 512 and "--gpu-memory-utilization 0.99 leaves 808 MiB" in line
    # V1's are within the share, and nobody knows what a size in bytes leaves.
    v1 = SequenceMemory(2 << 20, v2=False)
    assert check(flags(max_num_seqs=8192), Machine("cuda", 8, 79 * GIB, False, 1024), plenty, v1, PROCESSES) == []
    assert check(flags(max_num_seqs=8192, kv_cache_memory_bytes=GIB), H100, plenty, LONG, PROCESSES) == []

    offloading = flags(kv_offloading_size=10.0, cpu_offload_gb=2.0, tensor_parallel_size=4)
    assert taken_beside_gpus(offloading) == 20 * GIB
