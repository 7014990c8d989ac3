"""Adds a worker method that swaps the ladder's factors between batches, through vLLM's ``worker_extension_cls``."""

from typing import Any

from ropeswitch.model_patches.switch.settings import RopeSettings

EXTENSION = f"{__name__}.ReplaceSets"


class ReplaceSets:
    """Mixin that vLLM adds to the bases of :class:`~ropeswitch.model_patches.switch.worker.LadderWorker`."""

    settings: RopeSettings
    step_rows: Any

    def replace_sets(self, values: dict[str, Any]) -> None:
        """Use other factors under the same set names from the next step on; no request may be running.

        Args:
            values: The initial settings as JSON values, with other factors, scales and start tokens of the sets.

        Raises:
            ValueError: when anything else differs; the rows stay unchanged.
        """
        given = RopeSettings.from_json(values)
        wanted, found = _fixed(self.settings), _fixed(given)
        for name, value in wanted.items():
            if found[name] != value:
                raise ValueError(f"{name}: {found[name]!r} must be {value!r}, as at the start")
        self.step_rows.load(given)


def _fixed(settings: RopeSettings) -> dict[str, Any]:
    """Return the settings that must not change; for sets: name, maximum length, number of factors and softmax scale."""
    sets = tuple((s.name, s.max_length, len(s.factors), s.softmax_scale) for s in settings.ladder.sets)
    # Where the sets came from changes with them.
    return settings.to_json() | {"sets": sets, "origins": None}
