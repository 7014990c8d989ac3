"""A finished ladder with the origin of its numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.text_table import table


@dataclass(frozen=True)
class Origin:
    """Origin of one set: the extension ratio of its longest sequence to the native window, and the source of its numbers.

    The ratio is None if the factors were listed.
    """

    factor: float | None
    source: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Origin":
        return cls(**values)


@dataclass(frozen=True)
class MadeLadder:
    """A ladder with each set's origin, a name for how it was chosen, and an optional hint for the user.

    ``theta`` is the rotary base that it was made for; None if the source does not specify one.
    """

    ladder: FactorLadder
    origins: tuple[Origin, ...]
    name: str
    theta: float | None = None
    note: str = ""

    def lines(self, max_model_len: int | None) -> list[str]:
        """Format the ladder as a table for the startup log; ``max_model_len`` -1 is the engine's choice, None the end."""
        softmax = any(each.softmax_scale is not None for each in self.ladder.sets)
        rows = [("set", "longest", "factor", "attention", *(["softmax"] if softmax else []), "from")]
        for each, origin in zip(self.ladder.sets, self.origins, strict=True):
            factor = "listed" if origin.factor is None else f"{origin.factor:.6g}"
            scales = [each.scale, *([1.0 if each.softmax_scale is None else each.softmax_scale] if softmax else [])]
            rows.append(
                (each.name, f"{each.max_length:,}", factor, *(f"{scale:.6g}" for scale in scales), origin.source)
            )
        end = self.ladder.max_length if max_model_len is None else max_model_len
        longest = "as the KV cache allows" if end == -1 else f"{end:,} tokens"
        head = f"ladder {self.name}: each sequence uses the first set that is long enough; longest sequence {longest}"
        return [head, *(f"  {line}" for line in table(rows).splitlines()), *([self.note] if self.note else [])]
