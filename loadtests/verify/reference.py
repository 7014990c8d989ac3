"""What is right by Transformers: the served model on this machine, rotated with each set of the ladder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.evaluate.local_target import LocalTarget
from ropeswitch.factors.evaluate.target import Window
from ropeswitch.factors.ladders.choice import Choice
from ropeswitch.factors.ladders.choose import choose
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.loadtests.verify.plan import Ladder


@dataclass(frozen=True)
class Reference:
    """The model with the ladder that the server should have."""

    target: LocalTarget

    @classmethod
    def load(cls, folder: str, choice: Choice, ladder: Ladder) -> "Reference":
        """Load a model's folder, with the sets of a factor file, the config's own, or those of a rule.

        Raises:
            FactorError: for a model or a file that cannot be used, too little memory, or sets without those of the server.
        """
        stored = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
        free = psutil.virtual_memory().available
        if 2 * stored > free:
            raise FactorError(
                f"--reference {folder!r}: needs up to {2 * stored >> 30} GiB for float32 weights, and {free >> 30} are free"
            )
        try:
            # The server under test may hold most of the GPU's memory.
            model = LocalModel.load(folder, device="cpu")
        except (RuntimeError, MemoryError) as error:
            raise FactorError(f"--reference {folder!r}: {str(error).splitlines()[0]}") from error
        made = choose(choice, model.model.config.get_text_config().to_dict(), ladder.longest).ladder
        if missing := [name for name in ladder.names if name not in made.names]:
            raise FactorError(
                f"--reference: the server has {missing[0]!r}, this ladder {', '.join(made.names)}; set --ladder or --factors"
            )
        return cls(LocalTarget(folder, model, made))

    def scores(self, tokens: Sequence[int], factor_set: str) -> list[float]:
        """Return the log-probability of each token but the first; FactorError where the memory does not suffice."""
        try:
            [losses] = self.target.losses([Window(tokens, 1)], factor_set)
        except (RuntimeError, MemoryError) as error:
            raise FactorError(f"--reference: {str(error).splitlines()[0]}") from error
        return [-each for each in losses]
