"""``vllm.v1.executor.multiproc_executor.MultiprocExecutor.shutdown``: wrapped to kill the other ranks when one has died.

replaces: the shutdown of an engine's worker processes.
why: ranks that wait for a dead one in shared memory or on a GPU wait forever and ignore signals. Upstream waits up to 9 s
    for them before it reports that the engine is dead.
what differs: if a worker has died, the others are killed before upstream's own shutdown, which then does not wait.
limits: the worker processes of this node.
when it can go: when vLLM reports a dead worker to its clients before it waits for the others.
"""

from collections.abc import Callable
from typing import Any


def ending_survivors(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``MultiprocExecutor.shutdown``."""

    def shutdown(self: Any) -> None:
        # Set by the workers' monitor just before it calls this.
        if self.is_failed:
            for worker in self.workers:
                worker.proc.kill()
        upstream(self)

    return shutdown
