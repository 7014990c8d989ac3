"""What a start on a CPU needs of its machine: memory and a compiler."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from vllm.config import CacheConfig

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.start.fit import cpu
from ropeswitch.server.start.fit.memory import GIB, Memory, read_memory, weight_bytes
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory
from ropeswitch.server.start.fit.sequences import Machine

MEMORY = Memory(total=16 * GIB, free=10 * GIB)
MACHINE = Machine("cpu", devices=1, device_bytes=16 * GIB, v2=False, sequences=128)
SHORT, MILLION, FOUR = (SequenceMemory(length, 128, v2=False, device="cpu") for length in (1, 1 << 20, 4 << 20))


@pytest.fixture(autouse=True)
def of_ten_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "read_memory", lambda: MEMORY)


def flags(**given: Any) -> argparse.Namespace:
    none = ("kv_cache_memory_bytes", "data_parallel_size_local", "data_parallel_rank", "revision", "download_dir")
    none += ("max_num_seqs", "block_size", "kv_offloading_size")
    ones = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes")
    rest = {"gpu_memory_utilization": CacheConfig().gpu_memory_utilization, "model": "a/b", "headless": False}
    rest |= {"enforce_eager": True, "optimization_level": 2, "compilation_config": {}, "cpu_offload_gb": 0.0}
    return argparse.Namespace(**(dict.fromkeys(none) | dict.fromkeys(ones, 1) | rest | given))


def weigh(folder: Path, **gib: int) -> None:
    for name, size in gib.items():
        with (folder / f"{name}.safetensors").open("wb") as file:
            file.truncate(size * GIB)


@pytest.mark.parametrize(
    ("given", "config", "gib", "weights"),
    [
        ({}, "{}", 3, 2),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nnodes": 2}, "{}", 1.5, 2),
        # Each data parallel engine of this machine loads its own weights, experts apart, which are split over them.
        ({"data_parallel_size": 4}, "{}", 0, 8),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, "{}", 1, 4),
        ({"data_parallel_size": 4, "data_parallel_rank": 3, "tensor_parallel_size": 2}, "{}", 1.5, 2),
        ({"data_parallel_size": 2}, '{"num_experts": 8}', 1.5, 2),
    ],
)
def test_the_default_is_half_of_what_weights_and_processes_leave_shared_by_the_ranks(
    tmp_path: Path, given: dict[str, int], config: str, gib: float, weights: int
) -> None:
    weigh(tmp_path, model_1=1, model_2=1, consolidated=2)
    (tmp_path / "config.json").write_text(config)
    args = flags(model=str(tmp_path), **given)
    if not gib:
        with pytest.raises(UsageError, match="no room for a KV cache"):
            cpu.check(args, {}, MACHINE, SHORT)
        return
    [line] = cpu.check(args, {}, MACHINE, SHORT)
    assert args.kv_cache_memory_bytes == pytest.approx(gib * GIB, rel=1e-3)
    assert f"the weights take {weights}.0 GiB" in line


def test_weights_in_mistral_s_format_and_in_the_hub_s_cache_count(tmp_path: Path) -> None:
    weigh(tmp_path, consolidated=2)
    assert weight_bytes(flags(model=str(tmp_path))) == 2 * GIB
    for commit, size in (("1" * 40, 2), ("2" * 40, 3)):
        snapshot = tmp_path / "models--a--b" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        weigh(snapshot, model=size)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("1" * 40)
    cases = (({}, 2), ({"revision": "2" * 40}, 3), ({"model": "a/other"}, 0), ({"model": "s3://bucket/model"}, 0))
    for given, weights in cases:
        assert weight_bytes(flags(download_dir=str(tmp_path), **given)) == weights * GIB


@pytest.mark.parametrize(
    ("given", "space", "expected"),
    [
        ({"kv_cache_memory_bytes": 9 * GIB}, "", None),
        ({"gpu_memory_utilization": 0.5}, "", None),
        # A machine without ranks needs no cache.
        ({"data_parallel_size": 4, "data_parallel_size_local": 0}, "11", None),
        ({"kv_cache_memory_bytes": 99 * GIB}, "9", None),
        ({"kv_cache_memory_bytes": 11 * GIB}, "", "--kv-cache-memory-bytes: 11.0 GiB does not fit"),
        (
            {"kv_cache_memory_bytes": 6 * GIB, "tensor_parallel_size": 2},
            "",
            "--kv-cache-memory-bytes: 6.0 GiB for each",
        ),
        ({}, "11", "VLLM_CPU_KVCACHE_SPACE: 11.0 GiB does not fit"),
        ({}, "1.5", "VLLM_CPU_KVCACHE_SPACE: '1.5' must be a whole number of GiB"),
        ({"gpu_memory_utilization": 0.7}, "", "--gpu-memory-utilization: 0.7 of the memory is 11.2 GiB"),
    ],
)
def test_what_the_user_chose_stays_or_is_refused_where_it_does_not_fit(
    given: dict[str, Any], space: str, expected: str | None
) -> None:
    args, environment = flags(**given), {"VLLM_CPU_KVCACHE_SPACE": space}
    if expected is None:
        assert cpu.check(args, environment, MACHINE, SHORT) == [] and args == flags(**given)
        return
    with pytest.raises(UsageError) as refused:
        cpu.check(args, environment, MACHINE, SHORT)
    assert str(refused.value).startswith(expected)


def test_sequences_take_memory_before_the_cache(tmp_path: Path) -> None:
    """5 bytes a token of each sequence on the V1 runner, and a block table twice."""
    args = flags()
    [line] = cpu.check(args, {}, MACHINE, MILLION)
    assert args.max_num_seqs is None and MILLION.host_bytes(128) == 128 * (5 * (1 << 20) + 2 * 4 * 8192)
    assert args.kv_cache_memory_bytes == (8 * GIB - MILLION.host_bytes(128)) // 2 and "648 MiB" in line
    # Half of what is left is for keys and values: 4 GiB hold 101 such sequences on two ranks.
    args = flags(tensor_parallel_size=2)
    lowered, _ = cpu.check(args, {}, MACHINE, FOUR)
    assert args.max_num_seqs == 64 and lowered.startswith("--max-num-seqs: 64 instead of the default, 128: ")
    # The cache of every rank is the user's own, beside the weights.
    weigh(tmp_path, model=1)
    args = flags(model=str(tmp_path), kv_cache_memory_bytes=5 * GIB // 2, max_num_seqs=128, tensor_parallel_size=2)
    with pytest.raises(UsageError, match=r"^--max-num-seqs: 128 does not fit: .* of which 4\.0 GiB is left"):
        cpu.check(args, {}, MACHINE, FOUR)


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n")
    assert read_memory(meminfo, tmp_path) == Memory(1000 << 10, 800 << 10)
    (tmp_path / "memory.current").write_text(f"{300 << 10}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {100 << 10}\n")
    for most, expected in (("max", Memory(1000 << 10, 800 << 10)), (str(500 << 10), Memory(500 << 10, 300 << 10))):
        (tmp_path / "memory.max").write_text(f"{most}\n")
        assert read_memory(meminfo, tmp_path) == expected


def test_what_torch_compile_needs_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args, nothing = flags(enforce_eager=False), {"PATH": str(tmp_path)}
    assert cpu.compiles(args, nothing) and not cpu.compiles(args, nothing | {"TORCHDYNAMO_DISABLE": "1"})
    with pytest.raises(UsageError, match=r"C\+\+ compiler: 'g\+\+' was not found"):
        cpu.check_compiler(nothing)
    (tmp_path / "g++").touch(mode=0o755)
    monkeypatch.setattr(cpu, "get_path", lambda _: str(tmp_path))
    with pytest.raises(UsageError, match=f"there is no {tmp_path}/Python.h"):
        cpu.check_compiler(nothing)
    (tmp_path / "Python.h").touch()
    cpu.check_compiler(nothing)
