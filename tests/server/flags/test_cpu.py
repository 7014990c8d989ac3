"""What a start on a CPU needs of its machine: memory and a compiler."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from vllm.config import CacheConfig

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.start.fit import cpu
from ropeswitch.server.start.fit.memory import GIB, Memory, fit, read_memory, taken
from ropeswitch.server.start.fit.sequence_memory import SequenceMemory
from ropeswitch.server.start.fit.sequences import Machine

MEMORY = Memory(total=16 * GIB, free=10 * GIB)
MACHINE = Machine("cpu", devices=1, device_bytes=16 * GIB, v2=False, sequences=128)


def flags(**given: Any) -> argparse.Namespace:
    sizes: dict[str, Any] = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "nnodes": 1,
    }
    sizes |= {"data_parallel_size_local": None, "data_parallel_rank": None}
    memory = {
        "kv_cache_memory_bytes": None,
        "gpu_memory_utilization": CacheConfig().gpu_memory_utilization,
        "model": "a/b",
    }
    where: dict[str, Any] = {"revision": None, "download_dir": None}
    where |= {"max_num_seqs": None, "headless": False}
    compiling = {"enforce_eager": False, "optimization_level": 2, "compilation_config": {}}
    return argparse.Namespace(**(sizes | memory | where | compiling | given))


def test_the_default_takes_half_of_what_weights_and_processes_leave(tmp_path: Path) -> None:
    args = flags()
    line = fit(args, MEMORY, {})
    assert args.kv_cache_memory_bytes == 4 * GIB
    assert line is not None and line.startswith("KV cache: 4.0 GiB, half of") and "10.0 GiB of 16.0 GiB" in line
    with (tmp_path / "model-1.safetensors").open("wb") as file:
        file.truncate(2 * GIB)
    args = flags(model=str(tmp_path), tensor_parallel_size=2)
    line = fit(args, MEMORY, {})
    assert args.kv_cache_memory_bytes == 3 * GIB // 2
    assert line is not None and "1.5 GiB per rank" in line and "the weights take 2.0 GiB" in line


def weigh(folder: Path, **gib: int) -> None:
    for name, size in gib.items():
        with (folder / f"{name}.safetensors").open("wb") as file:
            file.truncate(size * GIB)


def test_weights_count_as_often_as_they_are_loaded(tmp_path: Path) -> None:
    weigh(tmp_path, model_1=1, model_2=1, consolidated=2)
    (tmp_path / "config.json").write_text("{}")

    def chosen(**given: Any) -> str:
        line = fit(flags(**({"model": str(tmp_path)} | given)), MEMORY, {})
        assert line is not None
        return line

    assert "the weights take 2.0 GiB" in chosen()
    # Each data parallel engine loads its own; tensor parallel ranks share one copy.
    assert "the weights take 4.0 GiB" in chosen(data_parallel_size=4, data_parallel_size_local=2)
    assert "the weights take 2.0 GiB" in chosen(data_parallel_size=4, data_parallel_rank=3, tensor_parallel_size=2)
    # Experts are split over the engines.
    (tmp_path / "config.json").write_text('{"num_experts": 8}')
    assert "the weights take 2.0 GiB" in chosen(data_parallel_size=2)
    for each in tmp_path.glob("model_*"):
        each.unlink()
    assert "the weights take 2.0 GiB" in chosen()


def test_weights_in_the_hubs_cache_count(tmp_path: Path) -> None:
    for commit, size in (("1" * 40, 2), ("2" * 40, 3)):
        snapshot = tmp_path / "models--a--b" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        weigh(snapshot, model=size)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("1" * 40)
    for given, weights in (({}, "take 2.0 GiB"), ({"revision": "2" * 40}, "take 3.0 GiB")):
        line = fit(flags(download_dir=str(tmp_path), **given), MEMORY, {})
        assert line is not None and weights in line
    for model in ("a/other", "s3://bucket/model"):
        line = fit(flags(download_dir=str(tmp_path), model=model), MEMORY, {})
        assert line is not None and "weights" not in line


@pytest.mark.parametrize(
    ("given", "gib"),
    [
        ({"data_parallel_size": 4}, 1.0),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, 2.0),
        ({"data_parallel_size": 4, "data_parallel_rank": 3}, 4.0),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nnodes": 2}, 2.0),
    ],
)
def test_only_ranks_of_this_machine_count(given: dict[str, int], gib: float) -> None:
    args = flags(**given)
    fit(args, MEMORY, {})
    assert args.kv_cache_memory_bytes == gib * GIB
    assert fit(flags(data_parallel_size=4, data_parallel_size_local=0), Memory(GIB, 0), {}) is None


def test_what_the_user_chose_stays() -> None:
    for given, environment in (
        ({"kv_cache_memory_bytes": 10 * GIB}, {}),
        ({"gpu_memory_utilization": 0.5}, {}),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "10"}),
    ):
        args = flags(**given)
        assert fit(args, MEMORY, environment) is None and args == flags(**given)


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (
            {"kv_cache_memory_bytes": 11 * GIB},
            {},
            "--kv-cache-memory-bytes: 11.0 GiB does not fit: 10.0 GiB of 16.0 GiB",
        ),
        (
            {"kv_cache_memory_bytes": 6 * GIB, "tensor_parallel_size": 2},
            {},
            "--kv-cache-memory-bytes: 6.0 GiB for each of 2 ranks does not fit: 10.0 GiB of 16.0 GiB of memory is free; "
            "use at most 5.0 GiB",
        ),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "11"}, "VLLM_CPU_KVCACHE_SPACE: 11.0 GiB does not fit"),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "1.5"}, "VLLM_CPU_KVCACHE_SPACE: '1.5' must be a whole number of GiB"),
        (
            {"gpu_memory_utilization": 0.7},
            {},
            "--gpu-memory-utilization: 0.7 of the memory is 11.2 GiB, which does not fit",
        ),
    ],
)
def test_sizes_that_do_not_fit(given: dict[str, Any], environment: dict[str, str], expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        fit(flags(**given), MEMORY, environment)
    assert str(refused.value).startswith(expected)


def test_sequences_take_memory_before_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 bytes a token of each sequence on the V1 runner, and a block table twice."""
    monkeypatch.setattr(cpu, "check_compiler", lambda *_: None)
    monkeypatch.setattr(cpu, "read_memory", lambda: MEMORY)
    million = SequenceMemory(1 << 20, 128, v2=False, device="cpu")
    args = flags(block_size=None)
    [line] = cpu.check(args, {}, MACHINE, million)
    assert args.max_num_seqs is None and million.host_bytes(128) == 128 * (5 * (1 << 20) + 2 * 4 * 8192)
    assert args.kv_cache_memory_bytes == (8 * GIB - million.host_bytes(128)) // 2
    assert "--max-num-seqs reserves 648 MiB" in line
    # Half of what is left is for keys and values: 4 GiB hold 101 such sequences on two ranks.
    args = flags(block_size=None, tensor_parallel_size=2)
    lowered, _ = cpu.check(args, {}, MACHINE, SequenceMemory(4 << 20, 128, v2=False, device="cpu"))
    assert args.max_num_seqs == 64 and lowered.startswith(
        "--max-num-seqs: 64 instead of the default, 128: 128 sequences"
    )
    given = flags(kv_cache_memory_bytes=GIB, tensor_parallel_size=2)
    assert taken(given, MEMORY, {}) == 2 * GIB and taken(flags(), MEMORY, {}) == 6 * GIB
    # A cache of the user's own that leaves nothing is refused, not the sequences.
    with pytest.raises(UsageError, match=r"^--kv-cache-memory-bytes: 11\.0 GiB does not fit"):
        cpu.check(flags(block_size=None, kv_cache_memory_bytes=11 * GIB), {}, MACHINE, million)
    with pytest.raises(UsageError, match=r"^--max-num-seqs: 64 does not fit: .* 324 MiB .* of which 100 MiB is left"):
        most = MEMORY.free - 100 * (1 << 20)
        cpu.check(flags(block_size=None, kv_cache_memory_bytes=most, max_num_seqs=64), {}, MACHINE, million)


def test_no_room_for_any_cache() -> None:
    with pytest.raises(
        UsageError, match=r"no room for a KV cache: 2\.0 GiB of 16\.0 GiB of memory is free, and the server"
    ):
        fit(flags(), Memory(16 * GIB, 2 * GIB), {})


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n")
    assert read_memory(meminfo, tmp_path) == Memory(1000 << 10, 800 << 10)
    (tmp_path / "memory.max").write_text("max\n")
    assert read_memory(meminfo, tmp_path) == Memory(1000 << 10, 800 << 10)
    (tmp_path / "memory.max").write_text(f"{500 << 10}\n")
    (tmp_path / "memory.current").write_text(f"{300 << 10}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {100 << 10}\n")
    assert read_memory(meminfo, tmp_path) == Memory(500 << 10, 300 << 10)


def test_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"PATH": str(tmp_path)}
    with pytest.raises(UsageError) as refused:
        cpu.check_compiler(nothing)
    assert str(refused.value).startswith("C++ compiler: 'g++' was not found")
    assert "--enforce-eager" in str(refused.value) and "install g++" in str(refused.value)
    with pytest.raises(UsageError, match="CXX: 'c' was not found"):
        cpu.check_compiler(nothing | {"CXX": "c"})
    for eager in ({"enforce_eager": True}, {"optimization_level": "0"}, {"compilation_config": {"mode": 0}}):
        assert not cpu.compiles(flags(**eager), nothing)
    assert cpu.compiles(flags(), nothing) and not cpu.compiles(flags(), nothing | {"TORCHDYNAMO_DISABLE": "1"})
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    monkeypatch.setattr("ropeswitch.server.start.fit.cpu.get_path", lambda _: str(tmp_path))
    with pytest.raises(UsageError, match=f"there is no {tmp_path}/Python.h.*python3-dev.*--enforce-eager"):
        cpu.check_compiler(nothing)
    (tmp_path / "Python.h").touch()
    cpu.check_compiler(nothing)
