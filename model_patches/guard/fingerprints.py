"""Defines records of patched upstream symbols, looks symbols up and fingerprints their source.

``recorded/VERSION.json`` holds one fingerprint per symbol; ``ropeswitch patches record`` writes it.
"""

import hashlib
import importlib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import InputError
from ropeswitch.model_patches.switch.releases import in_release, located, release

FOLDER = Path(__file__).with_name("recorded")
# Finding the last line of a function takes 20 ms.
_source = cache(inspect.getsource)


class RegistryError(InputError, RuntimeError):
    """The installed vLLM differs from those that a patch was written for."""


@dataclass(frozen=True)
class Patch:
    """One patched upstream symbol.

    Attributes:
        target: Its dotted path.
        kind: ``replaced``, ``wrapped`` or ``subclassed``; ``unchanged`` if code of ours relies on it unchanged.
        file: The file with the patch and its reason.
        relies_on: The upstream functions with a fingerprint, because their change could give a wrong token, by dotted path,
            with what would go wrong. One whose change would fail loudly needs none.
        overrides: Names of other methods of the target that our subclass overrides; they must exist.
        when: The engines that it applies to, in words. All engines on that kind of device check its
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


def symbols(records: Iterable[Patch]) -> list[str]:
    """Return the distinct symbols of the installed release that records rely on, in order."""
    return list(dict.fromkeys(path for record in records for path in record.relies_on if in_release(path)))


def recorded() -> dict[str, str]:
    """Return the fingerprints of :func:`release` by dotted path."""
    found: dict[str, str] = json.loads((FOLDER / f"{release()}.json").read_text(encoding="utf-8"))
    return found


def fingerprint(path: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of an unwrapped function's source, by its dotted path."""
    upstream = inspect.unwrap(resolve(path)[2])
    # Of a Triton kernel, the Python function.
    upstream = getattr(upstream, "fn", upstream)
    try:
        text = _source(upstream)
    except (TypeError, OSError) as error:
        raise RegistryError(f"{path}: not a Python function in the installed vLLM ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve(path: str) -> tuple[Any, str, Any]:
    """Return a symbol's owner (a module or class), its name there and the symbol, by its dotted path.

    Raises:
        RegistryError: when the installed vLLM has no such symbol, or its module cannot be imported.
    """
    path = located(path)
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
