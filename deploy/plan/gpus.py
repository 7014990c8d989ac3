"""The kinds of GPU that the planner knows: gpus.toml, and a user's own files of the same form."""

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.numbers import is_number
from ropeswitch.factors.quoted import quoted
from ropeswitch.factors.strict_json import read_text

LIMIT = 1e6


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU; gpus.toml says what each figure is and where it comes from.

    Attributes:
        name: What ``--gpu`` calls it.
        memory_gib: Memory of the device as CUDA reports it, GiB.
        bf16_tflops: Peak of the tensor cores at 16-bit floats, dense, 10^12 operations a second.
        fp8_tflops: The same at 8-bit floats, or 0 where the GPU has none.
        memory_gb_per_s: Peak bandwidth of the device memory, 10^9 bytes a second.
        link_gb_per_s: Peak to the other GPUs of the node in one direction, 10^9 bytes a second.
    """

    name: str
    memory_gib: float
    bf16_tflops: float
    fp8_tflops: float
    memory_gb_per_s: float
    link_gb_per_s: float


FIELDS = tuple(field.name for field in fields(Gpu) if field.name != "name")
MAY_BE_ZERO = ("fp8_tflops",)


def load(extra_file: str | None = None) -> dict[str, Gpu]:
    """Every known kind of GPU by name; a kind in ``extra_file`` replaces the one of that name here.

    Raises:
        UsageError: naming the file, the kind, the field, its value and what is allowed.
    """
    known = parse(files("ropeswitch.deploy.plan").joinpath("gpus.toml").read_text(encoding="utf-8"), "gpus.toml")
    if extra_file is not None:
        name = f"--gpu-file: {extra_file!r}"
        try:
            text = read_text(extra_file)
        except FactorError as error:
            raise UsageError(f"{name} {error}") from error
        known |= parse(text, name)
    return known


def choose(kinds: dict[str, Gpu], name: str) -> Gpu:
    """The kind called ``name``.

    Raises:
        UsageError: listing the known kinds.
    """
    if name not in kinds:
        raise UsageError(
            f"--gpu: {name!r} is not known; allowed are {', '.join(kinds)}, or add it with --gpu-file FILE"
        )
    return kinds[name]


def server_defaults(gpu: Gpu) -> tuple[int, int]:
    """``max_num_batched_tokens`` and ``max_num_seqs`` of ``vllm serve`` on a GPU (``EngineArgs.get_batch_defaults``)."""
    if gpu.memory_gib >= 160:
        return 16384, 1024
    if gpu.memory_gib >= 70 and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


def parse(text: str, source: str) -> dict[str, Gpu]:
    """The kinds that the TOML text describes, one table each.

    Args:
        text: The file's text.
        source: What to call the file in a message.

    Raises:
        UsageError: naming the kind, the field, its value and what is allowed.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else f"is not valid TOML: {error}"
        raise UsageError(f"{source} {reason}") from error
    if not tables:
        raise UsageError(f"{source} contains no GPU; each is a table, [NAME], with {', '.join(FIELDS)}")
    return {name: _gpu(source, name, values) for name, values in tables.items()}


def _gpu(source: str, name: str, values: Any) -> Gpu:
    if not isinstance(values, dict):
        raise UsageError(f"{source}: {quoted(name)}: must be a table, [NAME], with {', '.join(FIELDS)}")
    where = f"{source}: [{name}]"
    if not name.isprintable() or not name or len(name) > 64:
        raise UsageError(f"{source}: {quoted(name)}: a GPU's name must be 1 to 64 printable characters")
    if unknown := sorted(set(values) - set(FIELDS)):
        raise UsageError(f"{where}: {quoted(unknown[0])}: unknown field; allowed are {', '.join(FIELDS)}")
    if missing := [field for field in FIELDS if field not in values]:
        raise UsageError(f"{where}: {missing[0]}: missing")
    return Gpu(name, **{field: _number(f"{where}: {field}", values[field], field in MAY_BE_ZERO) for field in FIELDS})


def _number(where: str, value: Any, may_be_zero: bool) -> float:
    allowed = f"a number {'from 0' if may_be_zero else 'above 0 and'} up to {LIMIT:.0f}"
    if not is_number(value) or not (0 < value <= LIMIT or (may_be_zero and value == 0)):
        raise UsageError(f"{where}: {quoted(value)} must be {allowed}")
    return float(value)
