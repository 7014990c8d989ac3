"""The mixin shared by our workers on all device types."""

from typing import Any

from torch import nn

from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.drafts.draft_sets import DraftSets
from ropeswitch.model_patches.switch.engine.initialize_model import require_checked
from ropeswitch.model_patches.switch.engine.patching import patch_process
from ropeswitch.model_patches.switch.rows.step_rows import StepRows
from ropeswitch.model_patches.switch.set_keys import ladder_digest


class LadderWorker:
    """A mixin before an upstream worker class: patches the process first, and lets the parts check the loaded model."""

    vllm_config: Any
    rank: int
    model_runner: Any

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self.settings = patch_process(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        require_checked(self.model_runner.get_model(), self.vllm_config.load_config.load_format)
        self._bind_speculator()
        parts.call("model_loaded", self.settings.parts, self)

    def _bind_speculator(self) -> None:
        """Attach the requests' sets to the V2 runner's draft model, if it has one; our V1 runner does so itself."""
        speculator: Any = getattr(self.model_runner, "speculator", None)
        if not isinstance(getattr(speculator, "model", None), nn.Module):
            return
        # Upstream writes this buffer before the draft's prefill and before its decode steps.
        starts = speculator.input_buffers.query_start_loc
        sets = DraftSets(len(starts) - 1, starts.device, starts)
        sets.bind(speculator.model)
        self.model_runner.model_state.draft_sets = sets

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake up, and rewrite rows and tables: they are in weight memory, which sleep level 2 discards.

        Upstream saves only a model's registered buffers.
        """
        super().wake_up(tags)  # type: ignore[misc]
        if tags is None or "weights" in tags:
            self._rows_holder.restore_rows()

    @property
    def step_rows(self) -> StepRows:
        """The rows that the model runner fills: in the V2 runner's model state, or in our V1 runner itself."""
        rows: StepRows = self._rows_holder.step_rows
        return rows

    @property
    def _rows_holder(self) -> Any:
        return getattr(self.model_runner, "model_state", None) or self.model_runner

    def ladder_report(self) -> tuple[int, str]:
        """Return this worker's rank and its ladder's digest, which the server compares with its own."""
        return self.rank, ladder_digest(self.settings)
