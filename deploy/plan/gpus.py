"""The kinds of GPU that the planner knows, from gpus.toml and from users' files of the same format."""

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.files import read_text
from ropeswitch.factors.numbers import is_number
from ropeswitch.factors.quoted import quoted

LIMIT = 1e6


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU; gpus.toml documents each figure, its unit and its source."""

    name: str
    memory_gib: float
    bf16_tflops: float
    fp8_tflops: float
    memory_gb_per_s: float
    link_gb_per_s: float


FIELDS = [field.name for field in fields(Gpu) if field.name != "name"]


def load(extra_file: str | None = None) -> dict[str, Gpu]:
    """Return every known kind of GPU by name; a kind in ``extra_file`` replaces a built-in one of the same name."""
    known = parse(files("ropeswitch.deploy.plan").joinpath("gpus.toml").read_text(encoding="utf-8"), "gpus.toml")
    if extra_file is not None:
        name = f"--gpu-file: {extra_file!r}"
        try:
            text = read_text(extra_file)
        except FactorError as error:
            raise UsageError(f"{name} {error}") from error
        known |= parse(text, name)
    return known


def default_max_num_seqs(gpu: Gpu) -> int:
    """Return the default of ``max_num_seqs`` by ``EngineArgs.get_batch_defaults`` on a GPU."""
    return 1024 if gpu.memory_gib >= 70 and "a100" not in gpu.name.lower() else 256


def parse(text: str, source: str) -> dict[str, Gpu]:
    """Return the kinds described by a TOML text, one table each; a UsageError begins with ``source`` and names the fault."""
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{source} is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{source} is not valid TOML: {error}") from error
    if not tables:
        raise UsageError(f"{source} contains no GPU; each is a table, [NAME], with {', '.join(FIELDS)}")
    kinds = {}
    for name, values in tables.items():
        where = f"{source}: [{quoted(name)[1:-1]}]"
        if not isinstance(values, dict) or (wrong := sorted({*values} ^ {*FIELDS})):
            found = quoted(wrong) if isinstance(values, dict) else quoted(values)
            raise UsageError(f"{where}: {found} missing or unknown; a table has exactly {', '.join(FIELDS)}")
        for field, value in values.items():
            least = "at least" if field == "fp8_tflops" else "above"
            if not is_number(value) or not (0 < value <= LIMIT or (value == 0 and least == "at least")):
                raise UsageError(f"{where}: {field}: {quoted(value)} must be a number {least} 0, at most {LIMIT:.0f}")
        kinds[name] = Gpu(name, **values)
    return kinds
