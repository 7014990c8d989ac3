"""What is measured of the miniature: searches of equal cost without fine-tuning, and every length with every set.

Everything goes through ``ropeswitch factors eval``, whose results and finished cells are kept; a stopped run goes on.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from ropeswitch.factors import file
from ropeswitch.factors.evaluate.cli import INTERRUPTED, factors_eval
from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.factors.rules.catalogue import RULES
from ropeswitch.factors.rules.formulas import Target
from ropeswitch.factors.rules.make import make
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.search.job import Job, files_beside, run_job
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.models.miniature.shape import PAIRS, RATIO, THETA, WINDOW
from ropeswitch.models.miniature.texts import text_folder

KNOWN = ("pi", "ntk", "yarn")
JUDGED = 256
"""The last tokens of a text that count: those that have all of the length before them."""
REPLY = 16
"""Tokens that a prompt leaves for the reply where a set ends; one that outgrew the set would be of the next."""
TUNED = ("switched", "short", "long", "unrecovered", *KNOWN)
LONG = ("short", "long", *KNOWN)
"""Beyond what the model was tuned with, where switched is long."""


@dataclass(frozen=True)
class Lengths:
    """Lengths that are measured alike.

    Attributes:
        name: Of the results' file.
        lengths: In tokens.
        documents: Judged at each length, from each seed; 0 for no perplexity.
        tries: Pass keys asked for at each length, from each seed.
        sets: By name, see `with_tuning`.
        windows: Of a document, each JUDGED tokens further.
    """

    name: str
    lengths: tuple[int, ...]
    documents: int
    tries: int
    sets: tuple[str, ...] = TUNED
    windows: int = 1


@dataclass(frozen=True)
class Measuring:
    """How much is measured. What a long text costs grows with the square of its length, hence the groups.

    Attributes:
        untuned: Searches without fine-tuning.
        groups: Of lengths.
        window: Of the base model.
        seeds: Of evaluation, and of the searches without fine-tuning.
        untuned_documents: What those found is judged on, from each seed.
    """

    untuned: SearchSettings
    groups: tuple[Lengths, ...]
    window: int = WINDOW
    seeds: int = 3
    untuned_documents: int = 10


def full(window: int = WINDOW) -> Measuring:
    """What is measured of the model of a whole recipe for the same window."""
    return Measuring(
        SearchSettings(8 * window, population=32, mutations=8, crossovers=8, parents=16, iterations=12, documents=3),
        (
            # Here sets differ by less than a thousandth.
            Lengths("1-to-2", (window, 2 * window), 400, 0, (*TUNED, "x32")),
            Lengths("1-to-2-keys", (window - REPLY, 2 * window - REPLY), 0, 10),
            Lengths("4", (4 * window,), 20, 10, (*TUNED, "x32")),
            Lengths("8-to-32", (8 * window, 16 * window, 32 * window), 8, 6, (*TUNED, "x32")),
            Lengths("64", (64 * window,), 4, 0),
            Lengths("64-keys", (64 * window - REPLY,), 0, 4),
            Lengths("128", (128 * window,), 2, 0, (*LONG, "pi-by-2", "yarn-by-2")),
            Lengths("128-keys", (128 * window,), 0, 3, LONG),
            Lengths("256", (256 * window,), 1, 0, (*LONG, "pi-by-4", "yarn-by-4")),
            Lengths("512", (RATIO * window,), 1, 0, LONG),
            Lengths("256-keys", (256 * window,), 0, 1, LONG),
            Lengths("512-keys", (RATIO * window - REPLY,), 0, 1, ("short", "long", "yarn")),
        ),
        window,
    )


SMALL = Measuring(
    replace(full().untuned, population=4, mutations=1, crossovers=1, parents=2, iterations=1, documents=1),
    (
        Lengths("1-to-2", (WINDOW, 2 * WINDOW), 1, 1, (*TUNED, "x2")),
        Lengths("6", (6 * WINDOW,), 1, 0, (*LONG, "pi-by-2")),
        Lengths("6-keys", (6 * WINDOW - REPLY,), 0, 1, LONG),
    ),
    seeds=2,
    untuned_documents=1,
)


def known_sets(length: int, window: int, base: FactorSet | None = None) -> list[FactorSet]:
    """PI, NTK and YaRN for ``length`` tokens: from the window, as published, or on top of a set the model was tuned with.

    A set on top keeps its base's scale and start tokens, which the model knows.
    """
    target = Target(length, length / (base.max_length if base else window), ())
    found = []
    for name in KNOWN:
        (rule,) = (each for each in RULES if each.name == name)
        (made,) = make(rule, Rope(2 * PAIRS, THETA, window), [target]).ladder.sets
        if base is not None:
            factors = tuple(one * other for one, other in zip(made.factors, base.factors, strict=True))
            made = replace(made, factors=factors, scale=base.scale, start_tokens=base.start_tokens)
        found.append(replace(made, name=name))
    return found


def without_tuning(base_model: Path, work: Path, measuring: Measuring) -> Path:
    """Search at 8 windows with several seeds, at random too, and judge what was found on texts that no search saw."""
    settings, folder = measuring.untuned, work / "without-tuning"
    folder.mkdir(parents=True, exist_ok=True)
    texts = text_folder(work, "search", settings.length)
    # The paper has no scale, so YaRN is judged with its own and, to compare factors alone, with none.
    sets = known_sets(settings.length, measuring.window)
    sets += [replace(each, name=f"{each.name}-unscaled", scale=1.0) for each in sets if each.scale != 1.0]
    for method in ("evolution", "random"):
        for seed in range(measuring.seeds):
            name = f"{method}-{seed}"
            output = folder / f"{name}.json"
            if not output.exists():
                choice = replace(settings, method=method, seed=seed)
                job = Job(str(base_model), str(texts), choice, name, scale="none", evaluator="transformers")
                result = run_job(job, files_beside(output))
                file.save(output, file.LadderFile(FactorLadder((result.factor_set,)), THETA))
            sets += file.load(output).ladder.sets
    sets += [replace(each, name=f"{each.name}-no-start", start_tokens=0) for each in sets if "evolution" in each.name]
    output = folder / "evaluation.json"
    names = tuple(each.name for each in sets)
    group = Lengths("untuned", (settings.length,), measuring.untuned_documents, 0, names, windows=4)
    _evaluate(base_model, None, sets, group, measuring.seeds, work, output)
    return output


def with_tuning(model: Path, work: Path, measuring: Measuring) -> list[Path]:
    """Perplexity and pass keys of the finished model at every length with the sets that each group names.

    ``switched`` is the ladder; ``short`` its first set, ``long`` its last and ``unrecovered`` the one that the model was
    tuned with last. ``pi``, ``ntk`` and ``yarn`` extend that one to as much as ``long``, ``pi-by-2`` to twice its length.
    Earlier searches' sets have the names of their files in ``work``.
    """
    ladder = file.load(model / "factors.json").ladder
    tuned_with, longest = ladder.sets[-2:]
    sets = [replace(ladder.sets[0], name="short"), replace(longest, name="long")]
    sets += [replace(tuned_with, name="unrecovered"), *known_sets(longest.max_length, measuring.window, tuned_with)]
    for ratio in (2, 4):
        close = known_sets(ratio * tuned_with.max_length, measuring.window, tuned_with)
        sets += [replace(each, name=f"{each.name}-by-{ratio}") for each in close]
    found = [path for path in sorted(work.glob("x*.json")) if "." not in path.stem]
    sets += [each for path in found for each in file.load(path).ladder.sets if each.name not in ladder.names]
    outputs = []
    for group in measuring.groups:
        outputs.append(work / "evaluation" / f"{group.name}.json")
        chosen = [each for each in sets if each.name in group.sets]
        _evaluate(model, model / "factors.json", chosen, group, measuring.seeds, work, outputs[-1])
    return outputs


def _evaluate(
    model: Path, factors: Path | None, sets: list[FactorSet], group: Lengths, seeds: int, work: Path, output: Path
) -> None:
    if output.exists():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    tasks = [name for name, wanted in (("perplexity", group.documents), ("passkey", group.tries)) if wanted]
    flags = ["--lengths", ",".join(map(str, group.lengths)), "--seeds", str(seeds), "--tasks", ",".join(tasks)]
    flags += ["--sets", ",".join(group.sets), "--output", str(output), "--plots", str(output.with_suffix(""))]
    if group.tries:
        flags += ["--tries", str(group.tries)]
    if group.documents:
        # Many more than are drawn, so that seeds seldom share a document and error bars are what they say.
        texts = text_folder(work, "evaluation", max(group.lengths), 4 * seeds * group.documents)
        flags += ["--text", str(texts), "--documents", str(group.documents), "--windows", str(group.windows)]
        flags += ["--judge-last", str(JUDGED), "--stride", str(JUDGED)]
    for each in sets:
        path = output.parent / "sets" / f"{output.stem}-{each.name}.json"
        path.parent.mkdir(exist_ok=True)
        file.save(path, file.LadderFile(FactorLadder((each,)), THETA), overwrite=True)
        flags += ["--candidate", f"{each.name}={path}:{each.name}"]
    if factors is not None:
        flags += ["--factors", str(factors)]
    if factors_eval([str(model), *flags]) == INTERRUPTED:
        raise KeyboardInterrupt
