"""``vllm.v1.executor.multiproc_executor.MultiprocExecutor.shutdown``: wrapped to end the other ranks when one has died.

replaces: the end of an engine's worker processes.
why: ranks that wait for a dead one in shared memory or on a GPU do so for ever, without hearing signals. Upstream gives them
    nine seconds to end by themselves before it tells anyone that the engine is dead.
what differs: where a worker has died, the others are killed before upstream's own shutdown, which need not wait, and the
    shared memory of their collectives, which only they would have freed, is freed.
limits: the worker processes of this node.
when it can go: when vLLM tells its clients of a dead worker before it waits for the others.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

# Where Linux keeps shared memory, and how CPU workers name theirs, with their rank behind (`_CPUSHMDistributed`).
_SHARED, _NAME = "/dev/shm/", "-cpushm_"


def ending_survivors(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``MultiprocExecutor.shutdown``."""

    def shutdown(self: Any) -> None:
        # Set by the monitor of the workers just before it comes here.
        if self.is_failed:
            segments: set[Path] = set()
            for worker in self.workers:
                segments |= collective_memory(worker.proc.pid)
                worker.proc.kill()
            for segment in segments:
                segment.unlink(missing_ok=True)
        upstream(self)

    return shutdown


def collective_memory(pid: int) -> set[Path]:
    """The shared memory through which a CPU worker talks to its group, every rank's; none for one that is gone."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    # Address, rights, offset, device, inode and, for what has one, a path.
    paths = [fields[5] for line in maps if len(fields := line.split(maxsplit=5)) == 6]
    return {Path(path) for path in paths if path.startswith(_SHARED) and _NAME in path}
