"""The units of an evaluation."""

from dataclasses import dataclass

from ropeswitch.factors.evaluate.passkey import PASSKEY
from ropeswitch.factors.evaluate.perplexity import PERPLEXITY

TASKS = (PERPLEXITY, PASSKEY)


@dataclass(frozen=True)
class Cell:
    """One unit of measurement: a task at one length with one set, from one seed."""

    task: str
    length: int
    set_name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}, length {self.length}, set {self.set_name}, seed {self.seed}"
