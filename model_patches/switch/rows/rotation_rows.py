"""The rows of one kind of rotary module: a buffer at a fixed address, and the code that fills it."""

from collections.abc import Callable
from typing import Any

import torch

from ropeswitch.kernels.angles import build_tables
from ropeswitch.kernels.axis_rows import AxisRows
from ropeswitch.kernels.fill_rows import ExactRows
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.rows.rotation import Rotation

# Fills rows, ``[>= tokens, rotary_dim]``, from ``[tokens]`` or ``[axes, tokens]`` positions, ``[requests]`` sets and
# ``[requests + 1]`` starts.
Filler = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


class RotationRows:
    """The rows of one rotation on one device.

    Args:
        rotation: The rotation.
        settings: The ladder and the angle mode.
        max_model_len: Maximum positions in a sequence.
        numbers: ``[max tokens of a step]`` int64 row numbers, counting from 0, on the device.
        kernels: The kernels of the part ``triton``, or None.

    Attributes:
        rows: ``[max tokens of a step, rotary_dim]`` float32, cosines then sines.
    """

    def __init__(
        self, rotation: Rotation, settings: RopeSettings, max_model_len: int, numbers: torch.Tensor, kernels: Any
    ) -> None:
        self.rotation, self.max_model_len, self.kernels = rotation, max_model_len, kernels
        self.rows = torch.zeros(len(numbers), rotation.rotary_dim, dtype=torch.float32, device=numbers.device)
        self._tokens = numbers.int()
        self.load(settings)

    def load(self, settings: RopeSettings) -> None:
        """Fill rows with these settings' factors from the next step on."""
        rotation, device = self.rotation, self.rows.device
        theta, width, sets = rotation.theta, rotation.rotary_dim, rotation.sets(settings)
        exact = settings.angles == "exact"
        self._filler: Filler
        if rotation.axes is not None or not exact:
            dtype = torch.float64 if exact else torch.float32
            self._filler = self._by_token(AxisRows(theta, width, sets, rotation.axes, device, dtype).fill)
            return
        tables = build_tables(theta, width, sets, self.max_model_len)
        if self.kernels is not None:
            self._filler = self.kernels.filler(tables, device)
        else:
            self._filler = self._by_token(ExactRows(tables, device).fill)

    def restore(self, settings: RopeSettings) -> None:
        """Like :meth:`load`, but rewrite the buffers too, because memory has lost their contents."""
        self.rows.zero_()
        torch.arange(len(self._tokens), out=self._tokens)
        self.load(settings)

    def fill(self, positions: torch.Tensor, sets: torch.Tensor, starts: torch.Tensor) -> None:
        """Write the rows of a step's tokens; later rows are left unchanged.

        Args:
            positions: ``[tokens]`` or ``[axes, tokens]`` int64 true positions.
            sets: ``[requests]`` int64: the factor set of each request.
            starts: ``[requests + 1]`` int32: start offset of each request's tokens, followed by the end offset.
        """
        if not self.rotation.laddered:
            sets = torch.zeros_like(sets)
        if self.rotation.axes is None and positions.dim() == 2:
            positions = positions[0]
        self._filler(self.rows, positions, sets, starts)

    def _by_token(self, fill: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]) -> Filler:
        tokens = self._tokens

        def fill_step(rows: torch.Tensor, positions: torch.Tensor, sets: torch.Tensor, starts: torch.Tensor) -> None:
            requests = torch.bucketize(tokens[: positions.shape[-1]], starts[1:], right=True)
            fill(rows, positions, sets[requests])

        return fill_step
