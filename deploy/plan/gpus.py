"""The kinds of GPU that the planner knows, from gpus.toml and from users' files of the same format."""

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.files import read_text
from ropeswitch.factors.numbers import is_number
from ropeswitch.factors.quoted import quoted

LIMIT = 1e6


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU; gpus.toml documents each figure and its source.

    Attributes:
        name: Name for ``--gpu``.
        memory_gib: Device memory as CUDA reports it, in GiB.
        bf16_tflops: Dense peak of the tensor cores for 16-bit floats, in 10^12 operations per second.
        fp8_tflops: The same for 8-bit floats; 0 if the GPU has none.
        memory_gb_per_s: Peak bandwidth of the device memory, in 10^9 bytes per second.
        link_gb_per_s: Peak one-way rate to the other GPUs of the node, in 10^9 bytes per second.
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
    """Return every known kind of GPU by name; a kind in ``extra_file`` replaces a built-in one of the same name.

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
    """Return the kind called ``name``.

    Raises:
        UsageError: for an unknown name, listing the known kinds.
    """
    if name not in kinds:
        raise UsageError(f"--gpu: {name!r} is unknown; allowed: {', '.join(kinds)}, or add it with --gpu-file FILE")
    return kinds[name]


def server_defaults(gpu: Gpu) -> tuple[int, int]:
    """Return the default ``max_num_batched_tokens`` and ``max_num_seqs`` of ``EngineArgs.get_batch_defaults`` on a GPU."""
    if gpu.memory_gib >= 160:
        return 16384, 1024
    if gpu.memory_gib >= 70 and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


def parse(text: str, source: str) -> dict[str, Gpu]:
    """Return the kinds described by a TOML text, one table each.

    Args:
        text: Content of the file.
        source: Name of the file in messages.

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
        raise UsageError(f"{where}: {quoted(unknown[0])}: unknown field; allowed: {', '.join(FIELDS)}")
    if missing := [field for field in FIELDS if field not in values]:
        raise UsageError(f"{where}: {missing[0]}: missing")
    return Gpu(name, **{field: _number(f"{where}: {field}", values[field], field in MAY_BE_ZERO) for field in FIELDS})


def _number(where: str, value: Any, may_be_zero: bool) -> float:
    allowed = f"a number {'from 0' if may_be_zero else 'above 0 and'} up to {LIMIT:.0f}"
    if not is_number(value) or not (0 < value <= LIMIT or (may_be_zero and value == 0)):
        raise UsageError(f"{where}: {quoted(value)} must be {allowed}")
    return float(value)
