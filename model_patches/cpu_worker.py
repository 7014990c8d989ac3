"""``vllm.v1.worker.cpu_worker.CPUWorker``: subclassed to run the model with our runner.

replaces: the worker, through ``parallel_config.worker_cls``.
why: the worker builds the model runner, and every worker process must be patched before it builds a model.
what differs: the patches are applied first; ``init_device`` finds our runner under upstream's name; ``patch_report``
    tells the server what was applied.
limits: CPUs with the V1 runner; anything else is refused.
when it can go: when the runner class is configurable.
"""

from typing import Any
from unittest.mock import patch

from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_worker import CPUWorker

from ropeswitch.model_patches.cpu_model_runner import LadderCPUModelRunner
from ropeswitch.model_patches.registry import PATCHES, apply_all
from ropeswitch.model_patches.support import check_engine


class LadderCPUWorker(CPUWorker):
    """See the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        apply_all()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        check_engine(self.vllm_config)
        with patch.object(cpu_worker, "CPUModelRunner", LadderCPUModelRunner):
            super().init_device()

    def patch_report(self) -> dict[str, Any]:
        """What this worker runs with: its rank, the patches' targets and the names of the factor sets."""
        runner = self.model_runner
        assert isinstance(runner, LadderCPUModelRunner)
        return {
            "rank": self.rank,
            "patches": [record.target for record in PATCHES],
            "sets": list(runner.rope_settings.ladder.names),
        }
