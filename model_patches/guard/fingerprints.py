"""One patched upstream symbol: its record, how it is found, and the fingerprint of its source."""

import hashlib
import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from ropeswitch.factors.errors import InputError

VLLM_VERSION = "0.32.0"


class RegistryError(InputError, RuntimeError):
    """The installed vLLM is not the one that a patch was written for."""


@dataclass(frozen=True)
class Patch:
    """One upstream symbol and what is done to it.

    Attributes:
        target: Dotted path of the symbol that is replaced, wrapped or subclassed.
        kind: ``replaced``, ``wrapped`` or ``subclassed``.
        file: The file that does it, and says why.
        relies_on: Fingerprints of the upstream functions whose behaviour the patch counts on, by dotted path.
        when: In which engines it is in play, one of ``records.CONDITIONS``. All engines on that kind of device check its
            fingerprints.
    """

    target: str
    kind: str
    file: str
    relies_on: dict[str, str]
    when: str = "always"


def fingerprint(symbol: Any) -> str:
    """First 16 hex digits of the SHA-256 of a function's signature and source."""
    text = f"{inspect.signature(symbol)}\n{inspect.getsource(symbol)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve(path: str) -> tuple[Any, str, Any]:
    """Find a symbol by its dotted path: its owner (a module or class), its name there, and the symbol.

    Raises:
        RegistryError: when the installed vLLM has no such symbol.
    """
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
            continue
        try:
            for part in parts[split:-1]:
                owner = getattr(owner, part)
            return owner, parts[-1], inspect.getattr_static(owner, parts[-1])
        except AttributeError:
            break
    raise RegistryError(f"{path}: not found in the installed vLLM; {pin()}")


def pin() -> str:
    """What a mismatch says about the versions that fit."""
    return f"this release works with vLLM {VLLM_VERSION} only"
