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
from ropeswitch.model_patches.settings import UnsupportedError, settings_of


class LadderCPUWorker(CPUWorker):
    """See the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        apply_all()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        if settings_of(self.vllm_config) is None:
            raise UnsupportedError(
                "additional_config: has no ropeswitch settings; start the engine with ropeswitch serve"
            )
        if self.use_v2_model_runner:
            raise UnsupportedError("VLLM_USE_V2_MODEL_RUNNER: the V2 runner is not supported with a factor ladder")
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
