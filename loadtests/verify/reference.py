"""What is right by Transformers: the served model on this machine, rotated with each set of the ladder."""

from collections.abc import Sequence
from dataclasses import dataclass

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.evaluate.local_target import LocalTarget
from ropeswitch.factors.evaluate.target import Window
from ropeswitch.factors.ladders.choice import AUTO, parse
from ropeswitch.factors.ladders.choose import choose, from_file
from ropeswitch.factors.local_model import LocalModel


@dataclass(frozen=True)
class Reference:
    """The model with the ladder that the server should have."""

    target: LocalTarget

    @classmethod
    def load(cls, folder: str, factors: str | None, max_model_len: int) -> "Reference":
        """Load a model's folder, with the sets of a factor file, the config's own, or the automatic ladder's.

        Raises:
            FactorError: for a model or a file that cannot be used.
        """
        model = LocalModel.load(folder)
        ladder = model.ladder
        if factors is not None:
            ladder = from_file(factors).ladder
        elif ladder is None:
            ladder = choose(parse(AUTO), model.model.config.get_text_config().to_dict(), max_model_len).ladder
        return cls(LocalTarget(folder, model, ladder))

    def scores(self, tokens: Sequence[int], factor_set: str) -> list[float]:
        """Return the log-probability of each token but the first; FactorError for a set that the ladder lacks."""
        if factor_set not in self.target.sets:
            known = ", ".join(self.target.sets[1:])
            raise FactorError(
                f"--reference: the server has a set {factor_set!r}, but this ladder has {known}; set --factors"
            )
        [losses] = self.target.losses([Window(tokens, 1)], factor_set)
        return [-each for each in losses]
