"""A search from a model's name and a folder of texts: everything is opened, checked and put together here."""

from dataclasses import dataclass, replace
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.search.model_facts import ModelFacts
from ropeswitch.factors.search.objective import Objective, make_objective
from ropeswitch.factors.search.plan import extension, recovery
from ropeswitch.factors.search.run import Evaluator, Files, Result, search
from ropeswitch.factors.search.settings import SearchSettings

EVALUATORS = ("auto", "transformers", "engine")


@dataclass(frozen=True)
class Job:
    """One search.

    Attributes:
        model: A folder or a name on the hub.
        text: The folder of documents.
        settings: How to search, and the length.
        name: Of the set that is made.
        base: The set that the model was fine-tuned with, or None where it was not.
        theta: The rotary base that ``base`` was made for, or None where its file does not say.
        recover: Whether the length is below the base's and its factors are to be recovered.
        scale: ``longrope``, ``none`` or a number; a recovery keeps its base's.
        upper: The largest factor, or None for the default.
        evaluator: One of :data:`EVALUATORS`.
        dtype: Of the weights.
        parallel: GPUs that the engine splits the model over.
        window: Tokens that the model was trained for before any extension, where its config no longer says so.
    """

    model: str
    text: str
    settings: SearchSettings
    name: str
    base: FactorSet | None = None
    theta: float | None = None
    recover: bool = False
    scale: str = "longrope"
    upper: float | None = None
    evaluator: str = "auto"
    dtype: str = "float32"
    parallel: int = 1
    window: int | None = None


def run_job(job: Job, files: Files) -> Result:
    """Do it, or go on with it.

    Raises:
        FactorError: for a model, text, number or file with which it cannot be done.
    """
    facts = ModelFacts.load(job.model)
    if job.theta is not None and job.theta != facts.theta:
        raise FactorError(f"--from: was made for rope_theta {job.theta:g}, but {job.model!r} has {facts.theta:g}")
    if job.window is not None:
        facts = replace(facts, window=job.window)
    if job.recover:
        if job.base is None:
            raise FactorError("--recover: needs the set that the model was extended with, --from FILE")
        plan = recovery(facts, job.settings, job.base, upper=job.upper)
    else:
        if job.base is None:
            check_not_extended(
                facts,
                "'ropeswitch factors import' makes a factor file of them; name it with --from FILE, or search shorter "
                "lengths with --recover",
            )
        plan = extension(facts, job.settings, job.base, scale=job.scale, upper=job.upper)
    # A name that no factor file may have is told now rather than at the end.
    FactorLadder.checked(FactorLadder((plan.factor_set(plan.starts[0], job.name, job.settings.length),)).to_json())
    objective = make_objective(job.text, facts.tokenizer, job.settings)
    about = {"model": facts.fingerprint(), "texts": objective.digest, "dtype": job.dtype, "recover": job.recover}
    evaluator = make_evaluator(job.evaluator, facts, objective, job.dtype, job.parallel)
    try:
        return search(plan, job.settings, evaluator, files, name=job.name, theta=facts.theta, about=about)
    finally:
        evaluator.close()


def check_not_extended(facts: ModelFacts, advice: str) -> None:
    """Refuse a model with LongRoPE factors in its config where a search would not go on from any of them.

    Raises:
        FactorError: naming its sets, with ``advice`` at the end.
    """
    if facts.ladder is not None:
        raise FactorError(
            f"model {facts.name!r}: is extended already: its config has LongRoPE factors (sets "
            f"{', '.join(facts.ladder.names)}), without which it would be judged here; {advice}"
        )


def own_ladder(model: str) -> FactorLadder:
    """The factor sets of a model's own config.

    Raises:
        FactorError: when it has none.
    """
    ladder = ModelFacts.load(model).ladder
    if ladder is None:
        raise FactorError(f"--recover: the config of {model!r} has no LongRoPE factors; name those it has, --from FILE")
    return ladder


def make_evaluator(kind: str, facts: ModelFacts, objective: Objective, dtype: str, parallel: int = 1) -> Evaluator:
    """Load the model; ``auto`` is the engine where there is a GPU, and transformers, which is faster on CPUs, elsewhere.

    Raises:
        FactorError: when it cannot be loaded or rotated.
    """
    import torch

    if kind == "engine" or (kind == "auto" and torch.cuda.is_available()):
        from ropeswitch.factors.search.engine_evaluator import EngineEvaluator

        return EngineEvaluator(facts, objective, dtype, parallel)
    from ropeswitch.factors.search.transformers_evaluator import TransformersEvaluator

    if parallel != 1:
        raise FactorError(f"--parallel: {parallel} goes with the engine only")
    return TransformersEvaluator(facts, objective, dtype)


def files_beside(output: str | Path) -> Files:
    """The files of a search whose result goes to ``output``: the same name with other endings."""
    stem = Path(output).with_suffix("")
    return Files(
        checkpoint=stem.with_name(f"{stem.name}.checkpoint.json"),
        log=stem.with_name(f"{stem.name}.log.jsonl"),
        plot=stem.with_name(f"{stem.name}.png"),
    )
