"""Tables of docs/proof.md and README.md, from the measurements of every server.

A table stands between a line ``<!-- NAME: made by make docs-proof -->`` and a line ``<!-- end -->``.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from ropeswitch.factors.evaluate.statistics import wilson
from ropeswitch.factors.files import save_text
from ropeswitch.loadtests.proof import store
from ropeswitch.loadtests.proof.arms import ARMS, BFLOAT16, FLOAT32, NATIVE, OURS, STATIC, WINDOW, dtypes
from ropeswitch.loadtests.proof.store import CHAT, PASSKEY, PERPLEXITY, Item, Measurement
from ropeswitch.loadtests.proof.texts import PACKAGES

ROTATIONS = (NATIVE, STATIC, OURS)
TITLES = {NATIVE: "native", STATIC: "static YaRN x4", OURS: "ropeswitch"}
PAGES = (Path("docs/proof.md"), Path("README.md"))
RESULTS = Path("models/results/proof")
_MADE = re.compile(r"(<!-- ([\w-]+): made by make docs-proof -->\n).*?(<!-- end -->)", re.DOTALL)
_NONE = "not measured yet"


T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Half-width of a 95% interval in standard errors (Student's t), for 1, 2, ... degrees of freedom."""
Z = 1.960


def t_quantile(freedom: int) -> float:
    """Return the half-width of a 95% interval in standard errors.

    Beyond :data:`T`, it is the first terms of the expansion in 1 / freedom (Abramowitz and Stegun, 26.7.5).
    """
    if freedom <= len(T):
        return T[freedom - 1]
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)


@dataclass(frozen=True)
class Ratio:
    """The ratio of two perplexities on the same documents, and its 95% interval from their differences."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        """Compute the ratio from paired losses in nats, of at least two documents.

        Raises:
            ValueError: if the losses are not pairs, or fewer than two.
        """
        if len(ours) != len(theirs) or len(ours) < 2:
            raise ValueError(f"{len(ours)} and {len(theirs)} documents: give both the same ones, at least two")
        differences = [one - other for one, other in zip(ours, theirs, strict=True)]
        mean = fmean(differences)
        error = t_quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
        return cls(*(math.exp(each) for each in (mean, mean - error, mean + error)))


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
    columns = ["tokens", "documents", "dtype", *TITLES.values()]
    columns += ["static / native", "ropeswitch / native", "ropeswitch / static"]
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


def _server(arm: str) -> str:
    rotation, _, dtype = arm.partition("-")
    return f"{TITLES[rotation]}, {dtype}"


def written(page: str, results: Results) -> str:
    """Return the page with its tables filled from the results.

    Raises:
        KeyError: for an unknown table.
    """
    made: dict[str, Callable[[Results], str]] = {
        "summary": summary,
        "perplexity": perplexity,
        "passkey": passkey,
        "chat": chat,
        "texts": lambda _: texts(),
    }
    return _MADE.sub(lambda found: f"{found[1]}\n{made[found[2]](results)}\n{found[3]}", page)


def texts() -> str:
    """Return the table of the packages that the texts come from."""
    lines = ["| package | archive | sha256 | texts |", "| --- | --- | --- | --- |"]
    lines += [f"| {each.requirement} | {each.archive} | `{each.sha256}` | {each.texts} |" for each in PACKAGES]
    return "\n".join(lines) + "\n"


def write(root: Path) -> None:
    """Write both pages' tables below ``root``."""
    results = Results.read(root / RESULTS)
    for page in PAGES:
        save_text(root / page, written((root / page).read_text(encoding="utf-8"), results), overwrite=True)
