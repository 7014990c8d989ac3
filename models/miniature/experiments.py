"""What is measured of the miniature: searches of equal cost without fine-tuning, and every length with every set.

Everything goes through ``ropeswitch factors eval``, whose results and finished cells are kept; a stopped run goes on.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.rules.catalogue import RULES
from ropeswitch.factors.rules.formulas import Target
from ropeswitch.factors.rules.make import make
from ropeswitch.factors.rules.rope import Rope
from ropeswitch.factors.search.job import Job, files_beside, run_job
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.models.miniature.shape import PAIRS, THETA, WINDOW
from ropeswitch.models.miniature.texts import text_folder
from ropeswitch.server.cli import main as ropeswitch

KNOWN = ("pi", "ntk", "yarn")
ROPE = Rope(2 * PAIRS, THETA, WINDOW)


@dataclass(frozen=True)
class Lengths:
    """Lengths that are measured alike.

    Attributes:
        name: Of the results' file.
        lengths: In tokens.
        documents: Judged at each length, from each seed.
        tries: Pass keys asked for at each length, from each seed.
    """

    name: str
    lengths: tuple[int, ...]
    documents: int
    tries: int


@dataclass(frozen=True)
class Measuring:
    """How much is measured. What a long text costs grows with the square of its length, hence the groups.

    Attributes:
        seeds: Of evaluation, and of the searches without fine-tuning.
        untuned: Those searches.
        groups: Of lengths.
    """

    seeds: int = 3
    untuned: SearchSettings = field(
        default_factory=lambda: SearchSettings(
            8 * WINDOW, population=32, mutations=8, crossovers=8, parents=16, iterations=12, documents=3
        )
    )
    groups: tuple[Lengths, ...] = (
        Lengths("short", tuple(WINDOW << n for n in range(5)), 10, 10),
        Lengths("middle", (32 * WINDOW, 64 * WINDOW), 2, 4),
        # A reply to a pass key must still fit.
        Lengths("long", (128 * WINDOW, 256 * WINDOW, 512 * WINDOW - 16), 1, 1),
    )


FULL = Measuring()
SMALL = Measuring(
    seeds=2,
    untuned=replace(FULL.untuned, population=4, mutations=1, crossovers=1, parents=2, iterations=1, documents=1),
    groups=(Lengths("short", (WINDOW, 2 * WINDOW), 1, 1), Lengths("long", (6 * WINDOW - 16,), 1, 1)),
)


def known_sets(length: int, base: FactorSet | None = None) -> list[FactorSet]:
    """PI, NTK and YaRN for ``length`` tokens: from the window, as published, or on top of a set the model was tuned with.

    A set on top keeps its base's scale and start tokens, which the model knows.
    """
    target = Target(length, length / (base.max_length if base else WINDOW), ())
    found = []
    for name in KNOWN:
        (rule,) = (each for each in RULES if each.name == name)
        (made,) = make(rule, ROPE, [target]).ladder.sets
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
    sets = known_sets(settings.length)
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
    group = Lengths("untuned", (settings.length,), 10 if measuring is FULL else 1, 0)
    _evaluate(base_model, None, sets, group, measuring.seeds, work, output)
    return output


def with_tuning(model: Path, work: Path, measuring: Measuring) -> list[Path]:
    """Perplexity and pass keys of the finished model at every length with every set that can be forced, and switched."""
    ladder = file.load(model / "factors.json").ladder
    tuned_with, longest = ladder.sets[-2:]
    short = max((each for each in ladder.sets if each.name.startswith("r")), key=lambda each: each.max_length)
    candidates = [replace(short, name="short"), replace(longest, name="long")]
    candidates += [replace(tuned_with, name="unrecovered")]
    candidates += known_sets(longest.max_length, tuned_with)
    outputs = []
    for group in measuring.groups:
        outputs.append(work / "evaluation" / f"{group.name}.json")
        _evaluate(model, model / "factors.json", candidates, group, measuring.seeds, work, outputs[-1])
    return outputs


def _evaluate(
    model: Path, factors: Path | None, sets: list[FactorSet], group: Lengths, seeds: int, work: Path, output: Path
) -> None:
    if output.exists():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    flags = ["--lengths", ",".join(map(str, group.lengths)), "--seeds", str(seeds), "--windows", "1"]
    flags += ["--documents", str(group.documents), "--output", str(output), "--plots", str(output.with_suffix(""))]
    # Many more than are drawn, so that seeds seldom share a document and error bars are what they say.
    count = 4 * seeds * group.documents
    flags += ["--text", str(text_folder(work, "evaluation", max(group.lengths), count))]
    flags += ["--tasks", "perplexity,passkey" if group.tries else "perplexity", "--tries", str(group.tries or 1)]
    names = [each.name for each in sets]
    for each in sets:
        path = output.parent / "sets" / f"{output.stem}-{each.name}.json"
        path.parent.mkdir(exist_ok=True)
        file.save(path, file.LadderFile(FactorLadder((each,)), THETA), overwrite=True)
        flags += ["--candidate", f"{each.name}={path}:{each.name}"]
    if factors is not None:
        flags, names = [*flags, "--factors", str(factors)], ["switched", *names]
    code = ropeswitch(["factors", "eval", str(model), *flags, "--sets", ",".join(names)])
    if code:
        raise FactorError(f"factors eval: ended with exit code {code}")
