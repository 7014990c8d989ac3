"""Builds a worker's report from the objects that it runs."""

from typing import Any

from ropeswitch.model_patches.guard.records import SCHEDULER
from ropeswitch.model_patches.guard.registry import OURS, applied, in_play


def report(worker: Any) -> dict[str, Any]:
    """Return a worker's rank, the targets of its active patches, and the names of its factor sets.

    Args:
        worker: One of our workers, with its model loaded.
    """
    config, runner = worker.vllm_config, worker.model_runner
    in_use = (worker, runner, getattr(runner, "model_state", None), *_connectors())
    ours = [type(each) for each in in_use if type(each).__module__.startswith(OURS)]
    found = {f"{base.__module__}.{base.__qualname__}" for each in ours for base in each.__mro__}
    if str(config.scheduler_config.scheduler_cls).startswith(OURS):
        found.add(SCHEDULER)
    if config.device_config.device_type == "cpu" and "cpu" in worker.settings.parts:
        # Imported here: upstream's CPU modules change torch for CPUs.
        from ropeswitch.model_patches.cpu import cpu_dcp_attention, slot_mapping_kernel

        found |= {cpu_dcp_attention.TARGET} if cpu_dcp_attention.registered(config) else set()
        found |= {slot_mapping_kernel.TARGET} if slot_mapping_kernel.registered() else set()
    # Upstream's classes inherit from each other; only those that apply to this engine are patches.
    here = {record.target for record in in_play(config)}
    return {"rank": worker.rank, "patches": sorted({*applied(), *(found & here)}), "sets": list(worker.step_rows.sets)}


def _connectors() -> tuple[Any, ...]:
    """Return this worker process's KV connectors."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if not has_kv_transfer_group():
        return ()
    connector = get_kv_transfer_group()
    return (connector, *getattr(connector, "sub_connectors", ()))
