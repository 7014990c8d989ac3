"""``vllm.v1.executor.multiproc_executor.MultiprocExecutor.shutdown``: wrapped to end the other ranks when one has died.

replaces: the end of an engine's worker processes.
why: ranks that wait for a dead one in shared memory or on a GPU do so for ever, without hearing signals. Upstream gives them
    up to nine seconds to end by themselves before it tells anyone that the engine is dead.
what differs: where a worker has died, the others are killed before upstream's own shutdown, which then need not wait.
limits: the worker processes of this node.
when it can go: when vLLM tells its clients of a dead worker before it waits for the others.
"""

from collections.abc import Callable
from typing import Any


def ending_survivors(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``MultiprocExecutor.shutdown``."""

    def shutdown(self: Any) -> None:
        # Set by the monitor of the workers just before it comes here.
        if self.is_failed:
            for worker in self.workers:
                worker.proc.kill()
        upstream(self)

    return shutdown
