"""The ladders that an API server process serves: the default ladder and the named ones.

A prompt's ladder is chosen when its model name is looked up, or else together with its set, and passed to the engine by ID.
The engine keeps the ID of a replaced ladder for a while (``model_patches/switch/ladders.py``), so a request on its way to
the engine still uses the ladder that its response headers show.
"""

from dataclasses import dataclass

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.request_set import SetRule
from ropeswitch.server.context import RequestContext

# Separates a ladder's name from that of its set.
SEPARATOR = ":"


@dataclass(frozen=True)
class ServedRule(SetRule):
    """The rule of one served ladder.

    Attributes:
        name: The ladder's name; empty for the default ladder.
        ladder_id: Its ID in the engine; None if ladders never change.
        labels: The index of each of its sets in :attr:`ServedLadders.names`.
    """

    name: str = ""
    ladder_id: str | None = None
    labels: tuple[int, ...] = ()


class ServedLadders:
    """See the module.

    Args:
        rule: The rule that the engine was started with.
        ladder_id: The ID of its ladder in the engine; None if ladders never change.

    Attributes:
        start: The rule that the engine was started with.
        default: The rule for requests that name no ladder.
        named: The rules of the named ladders, by name.
        names: The name of every set that was ever served, ``LADDER:SET`` or, in the default ladder, ``SET``: those of the
            startup ladder in order, then later ones as they are added.
    """

    def __init__(self, rule: SetRule, ladder_id: str | None = None) -> None:
        self.names: list[str] = []
        self.named: dict[str, ServedRule] = {}
        self.default = self.start = self.make(rule, ladder_id)

    def make(
        self, rule: SetRule, ladder_id: str | None, name: str = "", ladder: FactorLadder | None = None
    ) -> ServedRule:
        """Make the rule of a ladder, without serving it yet.

        Args:
            rule: Its policy and longest sequence are used.
            ladder_id: The ladder's ID in the engine.
            name: The ladder's name.
            ladder: Its sets; those of ``rule`` by default.
        """
        ladder = ladder or rule.ladder
        sets = [qualified(name, each) for each in ladder.names]
        self.names += [each for each in sets if each not in self.names]
        labels = tuple(map(self.names.index, sets))
        return ServedRule(ladder, rule.policy, rule.max_model_len, name, ladder_id, labels)

    def use(self, rule: ServedRule) -> None:
        """Serve a ladder in place of the one with its name."""
        if rule.name:
            self.named = {**self.named, rule.name: rule}
        else:
            self.default = rule

    def drop(self, name: str) -> None:
        """Stop serving a named ladder."""
        self.named = {each: rule for each, rule in self.named.items() if each != name}

    def of(self, context: RequestContext | None) -> ServedRule:
        """Return the rule for all of a request's prompts, which stays the same if its ladder is replaced in the meantime."""
        if context is None:
            return self.default
        if context.rule is None:
            context.rule = self.default
        rule: ServedRule = context.rule
        return rule


def qualified(name: str, factor_set: str) -> str:
    """Return the name of a set in headers, metrics, logs and traces."""
    return f"{name}{SEPARATOR}{factor_set}" if name else factor_set


def label(rule: SetRule, index: int) -> int:
    """Return the index of one of a ladder's sets in :attr:`ServedLadders.names`."""
    return rule.labels[index] if isinstance(rule, ServedRule) else index


def set_name(rule: SetRule, index: int) -> str:
    """Return the name of one of a ladder's sets in headers, metrics, logs and traces."""
    return qualified(rule.name if isinstance(rule, ServedRule) else "", rule.ladder.names[index])
