"""Compares the upstream symbols of ``patches.toml`` with their fingerprints."""

from collections.abc import Sequence
from typing import Any

from ropeswitch.model_patches.guard.fingerprints import Patch, RegistryError, fingerprint, recorded, resolve, symbols
from ropeswitch.model_patches.guard.records import DEVICES, NIXL_ONLY, PATCHES, QWEN4_ONLY
from ropeswitch.model_patches.switch.models.unsupported import is_qwen4
from ropeswitch.model_patches.switch.releases import RELEASES, UNVERIFIED, in_release, installed, release, unverified


def for_this_device() -> tuple[Patch, ...]:
    """Return the patches that an engine on this machine may need; others' upstream modules must not even be imported."""
    from vllm.platforms import current_platform

    here = current_platform.device_type
    return tuple(it for it in PATCHES if DEVICES.get(it.when, here) == here and in_release(it.target))


def for_engine(vllm_config: Any) -> tuple[Patch, ...]:
    """Return the patches whose fingerprints an engine checks: all of its device's, except those of what it does not use.

    Importing such upstream modules may warn about missing packages.
    """
    config = vllm_config.kv_transfer_config
    nixl = config is not None and any(config.has_connector(name) for name in ("NixlConnector", "NixlPullConnector"))
    used = {NIXL_ONLY: nixl, QWEN4_ONLY: is_qwen4(vllm_config)}
    return tuple(record for record in for_this_device() if used.get(record.when, True))


def mismatches(records: Sequence[Patch], *, with_fingerprints: bool = True) -> dict[str, str]:
    """Return what differs from the recorded release, with the ropeswitch files that rely on it, by dotted path.

    Without fingerprints, only missing symbols differ.
    """
    files: dict[str, list[str]] = {}
    for record in records:
        overridden = (f"{record.target}.{name}" for name in record.overrides)
        for path in filter(in_release, dict.fromkeys((record.target, *record.relies_on, *overridden))):
            files.setdefault(path, []).append(record.file)
    pinned, compared = recorded(), set(symbols(records) if with_fingerprints else ())
    found = {}
    for path in files:
        try:
            if path not in compared:
                resolve(path)
            elif (installed := fingerprint(path)) != (known := pinned.get(path, "no recorded one")):
                raise RegistryError(f"{path}: fingerprint {installed}, but ropeswitch was written for {known}")
        except RegistryError as error:
            found[path] = f"{error} ({', '.join(dict.fromkeys(files[path]))})"
    return found


def require(records: Sequence[Patch]) -> None:
    """Check that the installed vLLM is one that the patches were written for; of an unverified one, that it has the symbols.

    Raises:
        RegistryError: naming the first symbol that differs, the release compared with and the command that lists the others.
    """
    import vllm

    name, there = installed()
    if (code := vllm.__version__.partition("+")[0]) != there:
        raise RegistryError(
            f"{name} is {there}, but its Python files are of {code}; install one release in a fresh environment"
        )
    if there not in RELEASES and not unverified():
        raise RegistryError(
            f"{name} {there}: this works with vLLM {' and '.join(RELEASES)}; install one (`ropeswitch patches check` lists "
            f"what changed), or start it with --unverified-vllm ({UNVERIFIED}=1) and then run `ropeswitch verify`"
        )
    if found := list(mismatches(records, with_fingerprints=not unverified()).values()):
        more = f" and {len(found) - 1} more differences" if len(found) > 1 else ""
        raise RegistryError(
            f"{found[0]}{more}; the installed vLLM is not {release()} as released; "
            "`ropeswitch patches check` lists every difference"
        )
