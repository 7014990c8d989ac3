"""What our workers add to upstream's, on every kind of device."""

from typing import Any

from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.patching import patch_process
from ropeswitch.model_patches.switch.step_rows import StepRows


class LadderWorker:
    """A mixin before an upstream worker class: patches the process first, and hands the loaded model to the parts."""

    vllm_config: Any
    model_runner: Any

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self.settings = patch_process(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        parts.call("model_loaded", self.settings.parts, self)

    @property
    def step_rows(self) -> StepRows:
        """The rows that the model runner fills: the V2 runner keeps them in its model state, ours on V1 itself."""
        holder = getattr(self.model_runner, "model_state", None) or self.model_runner
        rows: StepRows = holder.step_rows
        return rows

    def patch_report(self) -> dict[str, Any]:
        """What this worker runs with, as ``model_patches/guard/patch_report.py`` reads it."""
        report: dict[str, Any] = parts.ask("guard", "report", self)
        return report
