"""The part ``guard``: refuses any vLLM but the pinned one, and reports the patches that each worker runs."""

from typing import Any

from ropeswitch.model_patches.guard.kernel_check import check_kernels
from ropeswitch.model_patches.guard.records import SCHEDULER
from ropeswitch.model_patches.guard.registry import OURS, applied, for_engine, in_play, require


def prepare(vllm_config: Any) -> None:
    """Compare every upstream symbol that an engine on this machine relies on with its fingerprint.

    Raises:
        RegistryError: naming a changed symbol, the pinned version and the command that lists the others.
    """
    require(for_engine(vllm_config))


def model_loaded(worker: Any) -> None:
    """Compare a GPU's kernels with the float64 reference.

    Raises:
        UnsupportedError: when they differ.
    """
    check_kernels(worker.step_rows, worker.get_model(), worker.settings)


def report(worker: Any) -> dict[str, Any]:
    """Return a worker's rank, the targets of its active patches, by what it runs, and the names of its factor sets."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    config, runner = worker.vllm_config, worker.model_runner
    in_use = [worker, runner, getattr(runner, "model_state", None)]
    if has_kv_transfer_group():
        connector = get_kv_transfer_group()
        in_use += [connector, *getattr(connector, "sub_connectors", ())]
    ours = [type(each) for each in in_use if type(each).__module__.startswith(OURS)]
    found = {f"{base.__module__}.{base.__qualname__}" for each in ours for base in each.__mro__}
    if str(config.scheduler_config.scheduler_cls).startswith(OURS):
        found.add(SCHEDULER)
    if config.device_config.device_type == "cpu" and "cpu" in worker.settings.parts:
        # Imported here: upstream's CPU modules change torch for CPUs.
        from ropeswitch.model_patches.cpu import cpu_dcp_attention

        found |= cpu_dcp_attention.registered(config)
    # Upstream's classes inherit from each other; only those that apply to this engine are patches.
    here = {record.target for record in in_play(config)}
    return {"rank": worker.rank, "patches": sorted({*applied(), *(found & here)}), "sets": list(worker.step_rows.sets)}
