"""The ladders that an API server process serves: the default one, and those with names of their own.

A prompt's ladder is chosen when its model's name is looked up, or else with its set, and named to the engine by its ID.
The engine keeps a ladder's ID for a while after another has taken its place (``model_patches/switch/ladders.py``), so a
request on its way reaches the one that its headers show.
"""

from dataclasses import dataclass

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.request_set import SetRule
from ropeswitch.server.context import RequestContext

# Separates a ladder's name from that of its set.
SEPARATOR = ":"


@dataclass(frozen=True)
class ServedRule(SetRule):
    """The rule of one ladder of a server.

    Attributes:
        name: The ladder's name; the default one's is empty.
        ladder_id: The engine's ID of it; None where ladders never change.
        labels: The place of each of its sets in :attr:`ServedLadders.names`.
    """

    name: str = ""
    ladder_id: str | None = None
    labels: tuple[int, ...] = ()


class ServedLadders:
    """See the module.

    Args:
        rule: The rule that the engine was started with.
        ladder_id: The engine's ID of its ladder; None where ladders never change.

    Attributes:
        start: The rule that the engine was started with.
        default: The rule of requests that name no ladder.
        named: The rules of the others, by name.
        names: The name of every set that was ever served, ``LADDER:SET`` or, in the default ladder, ``SET``: those of the
            start in order, then others as they come.
    """

    def __init__(self, rule: SetRule, ladder_id: str | None = None) -> None:
        self.names: list[str] = []
        self.named: dict[str, ServedRule] = {}
        self.default = self.start = self.make(rule, ladder_id)

    def make(
        self, rule: SetRule, ladder_id: str | None, name: str = "", ladder: FactorLadder | None = None
    ) -> ServedRule:
        """The rule of a ladder that is not served yet.

        Args:
            rule: The server's policy and longest sequence.
            ladder_id: The engine's ID.
            name: The ladder's name.
            ladder: Its sets; those of ``rule`` by default.
        """
        ladder = ladder or rule.ladder
        sets = [qualified(name, each) for each in ladder.names]
        self.names += [each for each in sets if each not in self.names]
        labels = tuple(map(self.names.index, sets))
        return ServedRule(ladder, rule.policy, rule.max_model_len, name, ladder_id, labels)

    def use(self, rule: ServedRule) -> None:
        """Have a ladder take the place of the one with its name."""
        if rule.name:
            self.named = {**self.named, rule.name: rule}
        else:
            self.default = rule

    def drop(self, name: str) -> None:
        """Serve a named ladder no more."""
        self.named = {each: rule for each, rule in self.named.items() if each != name}

    def of(self, context: RequestContext | None) -> ServedRule:
        """The rule of a request's prompts: all of them are in one ladder, whatever replaces it meanwhile."""
        if context is None:
            return self.default
        if context.rule is None:
            context.rule = self.default
        rule: ServedRule = context.rule
        return rule


def qualified(name: str, factor_set: str) -> str:
    """The name of a set in headers, metrics, logs and traces."""
    return f"{name}{SEPARATOR}{factor_set}" if name else factor_set


def label(rule: SetRule, index: int) -> int:
    """The place of one of a ladder's sets among the names of all."""
    return rule.labels[index] if isinstance(rule, ServedRule) else index


def set_name(rule: SetRule, index: int) -> str:
    """The name of one of a ladder's sets in headers, metrics, logs and traces."""
    return qualified(rule.name if isinstance(rule, ServedRule) else "", rule.ladder.names[index])
