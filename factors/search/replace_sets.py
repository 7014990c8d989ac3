"""A worker's method that swaps the ladder's factors between two batches, through vLLM's ``worker_extension_cls``."""

from typing import Any

from ropeswitch.model_patches.switch.settings import RopeSettings

EXTENSION = f"{__name__}.ReplaceSets"


class ReplaceSets:
    """vLLM adds it to the bases of our worker, :class:`~ropeswitch.model_patches.switch.worker.LadderWorker`."""

    settings: RopeSettings
    step_rows: Any

    def replace_sets(self, values: dict[str, Any]) -> None:
        """Rotate with other factors under the same names, from the next step on; no request may be running.

        Args:
            values: Settings as at the start, but for the sets' factors, scales and start tokens, as JSON.

        Raises:
            ValueError: when anything else differs; the rows stay as they are.
        """
        given = RopeSettings.from_json(values)
        wanted, found = _fixed(self.settings), _fixed(given)
        for name, value in wanted.items():
            if found[name] != value:
                raise ValueError(f"{name}: {found[name]!r} must be {value!r}, as at the start")
        self.step_rows.load(given)


def _fixed(settings: RopeSettings) -> dict[str, Any]:
    """What may not change; of the sets the name, the end in tokens, the number of factors and the softmax scale."""
    sets = tuple((s.name, s.max_length, len(s.factors), s.softmax_scale) for s in settings.ladder.sets)
    return settings.to_json() | {"sets": sets}
