"""Tables and findings of docs/proof.md, from the measurements of every server."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ropeswitch.factors.evaluate.statistics import wilson
from ropeswitch.loadtests.proof import store
from ropeswitch.loadtests.proof.arms import ARMS, BFLOAT16, FLOAT32, NATIVE, OURS, STATIC, WINDOW, dtypes
from ropeswitch.loadtests.proof.ratio import Ratio
from ropeswitch.loadtests.proof.store import CHAT, PASSKEY, PERPLEXITY, Item, Measurement

ROTATIONS = (NATIVE, STATIC, OURS)
TITLES = {NATIVE: "native", STATIC: "static YaRN x4", OURS: "ropeswitch"}
_NONE = "not measured yet"


@dataclass(frozen=True)
class Results:
    """Measurements by server name and item."""

    arms: Mapping[str, Mapping[Item, Measurement]]

    @classmethod
    def read(cls, folder: Path) -> "Results":
        return cls({arm.name: store.read(folder, arm.name) for arm in ARMS})

    def items(self, task: str, arms: Sequence[str], length: int | None = None) -> list[Item]:
        """Return the items that all of the servers measured."""
        common = set.intersection(*(set(self.arms[arm]) for arm in arms))
        return sorted(
            (item for item in common if item.task == task and length in (None, item.length)),
            key=lambda item: (item.length, item.name),
        )

    def lengths(self, task: str) -> list[int]:
        """Return the lengths at which every rotation was measured, in the task's number format."""
        return sorted(
            length
            for length in {item.length for found in self.arms.values() for item in found if item.task == task}
            if self.items(task, servers(task, length), length)
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all losses, which are the plot's input, in hexadecimal."""
        lines = [
            f"{arm} {item.length} {item.name} {each.tokens} {each.nll!r}"
            for arm, found in self.arms.items()
            for item, each in found.items()
            if item.task == PERPLEXITY
        ]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()

    def losses(self, rotation: str, length: int) -> list[float]:
        """Return each document's mean loss in nats, for the same documents in the same order with every rotation."""
        items = self.items(PERPLEXITY, servers(PERPLEXITY, length), length)
        found = [self.arms[server(rotation, PERPLEXITY, length)][item] for item in items]
        return [each.nll / each.tokens for each in found]

    def ratio(self, ours: str, theirs: str, length: int) -> Ratio:
        """Return the ratio of two rotations' perplexities, paired by document."""
        return Ratio.of(self.losses(ours, length), self.losses(theirs, length))


def server(rotation: str, task: str, length: int) -> str:
    """Return the name of the server that measures a rotation at a length; not for chats, which two servers measure."""
    [dtype] = dtypes(task, length)
    return f"{rotation}-{dtype}"


def servers(task: str, length: int) -> list[str]:
    """Return the name of each rotation's server."""
    return [server(each, task, length) for each in ROTATIONS]


def perplexity(results: Results) -> str:
    """One line for each length: perplexities, and ratios with paired 95% intervals."""
    columns = [
        "tokens",
        "documents",
        "dtype",
        *TITLES.values(),
        "static / native",
        "ropeswitch / native",
        "ropeswitch / static",
    ]
    lines = [f"| {' | '.join(columns)} |", "|" + " --: |" * len(columns)]
    for length in _comparable(results):
        losses = {each: results.losses(each, length) for each in ROTATIONS}
        means = [f"{math.exp(fmean(each)):.3f}" for each in losses.values()]
        pairs = [(STATIC, NATIVE), (OURS, NATIVE), (OURS, STATIC)]
        ratios = [_percent(results.ratio(*pair, length)) for pair in pairs]
        [dtype] = dtypes(PERPLEXITY, length)
        lines.append(f"| {length:,} | {len(losses[OURS])} | {dtype} | {' | '.join([*means, *ratios])} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else f"{_NONE}\n"


def passkey(results: Results) -> str:
    """One line for each length: pass keys found, with 95% intervals."""
    lines = [f"| tokens | {' | '.join(TITLES[each] for each in ROTATIONS)} |", "|" + " --: |" * 4]
    for length in results.lengths(PASSKEY):
        items = results.items(PASSKEY, servers(PASSKEY, length), length)
        cells = []
        for rotation in ROTATIONS:
            hits = sum(bool(results.arms[server(rotation, PASSKEY, length)][item].found) for item in items)
            low, high = wilson(hits, len(items))
            cells.append(f"{hits} of {len(items)} ({100 * low:.0f} to {100 * high:.0f}%)")
        lines.append(f"| {length:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else f"{_NONE}\n"


CHAT_PAIRS = (
    (f"{STATIC}-{FLOAT32}", f"{NATIVE}-{FLOAT32}", ""),
    (f"{OURS}-{FLOAT32}", f"{NATIVE}-{FLOAT32}", "must be 0"),
    (f"{STATIC}-{BFLOAT16}", f"{NATIVE}-{BFLOAT16}", ""),
    (f"{OURS}-{BFLOAT16}", f"{NATIVE}-{BFLOAT16}", "stock rounds cos and sin to bfloat16, ropeswitch does not"),
    (f"{NATIVE}-{BFLOAT16}", f"{NATIVE}-{FLOAT32}", "control: rounding alone"),
)


def changed(results: Results, ours: str, theirs: str) -> tuple[int, int]:
    """Return how many greedy answers differ between two servers, and how many were compared."""
    items = results.items(CHAT, [ours, theirs])
    return sum(results.arms[ours][item].reply != results.arms[theirs][item].reply for item in items), len(items)


def chat(results: Results) -> str:
    """One line for each pair of servers: the share of greedy answers that differ."""
    lines = ["| answers of | against | differ | share (95%) | |", "| --- | --- | --: | --: | --- |"]
    for ours, theirs, remark in CHAT_PAIRS:
        differ, count = changed(results, ours, theirs)
        if count:
            low, high = wilson(differ, count)
            share = f"{100 * differ / count:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
            lines.append(f"| {_server(ours)} | {_server(theirs)} | {differ} of {count} | {share} | {remark} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else f"{_NONE}\n"


def findings(results: Results) -> str:
    """One sentence for each length and comparison, with the direction of the difference."""
    lines = []
    for length in _comparable(results):
        pairs = [(STATIC, NATIVE), (OURS, NATIVE)] if length <= WINDOW else [(OURS, NATIVE), (OURS, STATIC)]
        lines += [_sentence(results.ratio(*pair, length), *pair, length) for pair in pairs]
    return "\n".join(lines) + "\n" if lines else f"{_NONE}\n"


def summary(results: Results) -> str:
    """Return the table of README.md: perplexity and changed chat answers of the three ways to serve.

    Beyond the window native has no perplexity: stock vLLM rejects such requests.
    """
    titles = ["SmolLM2-135M-Instruct", TITLES[NATIVE], TITLES[STATIC], TITLES[OURS]]
    lines = [f"| {' | '.join(titles)} |", "| --- | --: | --: | --: |"]
    for length in _comparable(results):
        native, static, ours = (f"{math.exp(fmean(results.losses(each, length))):.1f}" for each in ROTATIONS)
        if length <= WINDOW:
            static, ours = (
                f"{value} ({_percent_alone(results.ratio(rotation, NATIVE, length))})"
                for value, rotation in ((static, STATIC), (ours, OURS))
            )
        else:
            native = "rejected"
        lines.append(f"| perplexity at {length:,} tokens | {native} | {static} | **{ours}** |")
    shares = [changed(results, f"{each}-{FLOAT32}", f"{NATIVE}-{FLOAT32}") for each in (STATIC, OURS)]
    if all(count for _, count in shares):
        static, ours = (f"{differ} of {count}" for differ, count in shares)
        lines.append(f"| chat answers that differ from native | | {static} | **{ours}** |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else f"{_NONE}\n"


def _comparable(results: Results) -> list[int]:
    return [length for length in results.lengths(PERPLEXITY) if len(results.losses(OURS, length)) > 1]


def _percent_alone(ratio: Ratio) -> str:
    return "equal" if _is_equal(ratio) else f"{_signed(ratio.value)}%"


def _percent(ratio: Ratio) -> str:
    if _is_equal(ratio):
        return "equal within 0.01%"
    low, high = (_signed(each) for each in (ratio.low, ratio.high))
    return f"{_signed(ratio.value)}% ({low} to {high})"


def _is_equal(ratio: Ratio) -> bool:
    # The servers' float32 angles differ in the last digits.
    return max(abs(ratio.low - 1), abs(ratio.high - 1)) < 1e-4


def _signed(value: float) -> str:
    percent = 100 * (value - 1)
    digits = 2 if abs(percent) < 10 else 1 if abs(percent) < 100 else 0
    # Avoid -0.00.
    return f"{round(percent, digits) + 0.0:+,.{digits}f}"


def _sentence(ratio: Ratio, ours: str, theirs: str, length: int) -> str:
    here, there = TITLES[ours], TITLES[theirs]
    if _is_equal(ratio):
        return f"- {length:,} tokens: {here} and {there} are equal within 0.01%."
    if ratio.low <= 1 <= ratio.high:
        return f"- {length:,} tokens: {here} and {there} do not differ beyond the interval."
    word = "lower" if ratio.value < 1 else "**higher**"
    return f"- {length:,} tokens: perplexity of {here} is {word} than that of {there}, {_percent(ratio)}."


def _server(arm: str) -> str:
    rotation, _, dtype = arm.partition("-")
    return f"{TITLES[rotation]}, {dtype}"
