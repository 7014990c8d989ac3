"""Runs a search from a model's name and a folder of texts: opens, checks and combines everything it needs."""

from dataclasses import dataclass, replace
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.fingerprint import fingerprint
from ropeswitch.factors.search.model_facts import ModelFacts
from ropeswitch.factors.search.objective import Objective, make_objective
from ropeswitch.factors.search.plan import extension, recovery
from ropeswitch.factors.search.run import Evaluator, Files, Result, search
from ropeswitch.factors.search.settings import SearchSettings


@dataclass(frozen=True)
class Job:
    """One search.

    Attributes:
        model: Model folder or Hugging Face name.
        text: Folder of documents.
        settings: Search settings, including the length.
        name: Name of the new set.
        base: Set that the model was fine-tuned with, or None if it was not.
        theta: Rotary base that ``base`` was made for, or None if its file does not specify one.
        recover: Whether to recover factors for a length below the base's.
        scale: ``longrope``, ``none`` or a number; a recovery keeps its base's scale.
        upper: Largest factor, or None for the default.
        evaluator: ``auto``, ``transformers`` or ``engine``.
        dtype: Dtype of the weights.
        parallel: GPUs that the engine splits the model over.
        window: Original window in tokens, if the model's config no longer contains it.
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
    """Run a search, or resume it.

    Raises:
        FactorError: for an unsuitable model, text, number or file.
    """
    facts = ModelFacts.load(job.model)
    if job.theta is not None and job.theta != facts.rope.theta:
        raise FactorError(f"--from: made for rope_theta {job.theta:g}, but {job.model!r} has {facts.rope.theta:g}")
    if job.window is not None:
        facts = replace(facts, rope=replace(facts.rope, original_length=job.window))
    if job.recover:
        if job.base is None:
            raise FactorError("--recover: needs the set that the model was extended with; give --from FILE")
        plan = recovery(facts, job.settings, job.base, upper=job.upper)
    else:
        if job.base is None:
            check_not_extended(
                facts,
                "convert them to a factor file with 'ropeswitch factors import' and give it with --from FILE, or search "
                "shorter lengths with --recover",
            )
        plan = extension(facts, job.settings, job.base, scale=job.scale, upper=job.upper)
    # Reject an invalid set name now rather than at the end.
    FactorLadder.checked(FactorLadder((plan.factor_set(plan.starts[0], job.name, job.settings.length),)).to_json())
    objective = make_objective(job.text, facts.tokenizer, job.settings)
    about = {"model": fingerprint(facts.name), "texts": objective.digest, "dtype": job.dtype, "recover": job.recover}
    evaluator = make_evaluator(job.evaluator, facts, objective, job.dtype, job.parallel)
    try:
        return search(plan, job.settings, evaluator, files, name=job.name, theta=facts.rope.theta, about=about)
    finally:
        evaluator.close()


def check_not_extended(facts: ModelFacts, advice: str) -> None:
    """Refuse a model with LongRoPE factors in its config if the search would ignore them.

    Raises:
        FactorError: naming the model's sets, followed by ``advice``.
    """
    if facts.ladder is not None:
        raise FactorError(
            f"model {facts.name!r}: is already extended: its config has LongRoPE factors (sets "
            f"{', '.join(facts.ladder.names)}), which this search would ignore; {advice}"
        )


def own_ladder(model: str) -> FactorLadder:
    """Return the factor sets of a model's own config.

    Raises:
        FactorError: when it has none.
    """
    ladder = ModelFacts.load(model).ladder
    if ladder is None:
        raise FactorError(
            f"--recover: the config of {model!r} has no LongRoPE factors; give its factor file with --from FILE"
        )
    return ladder


def make_evaluator(kind: str, facts: ModelFacts, objective: Objective, dtype: str, parallel: int = 1) -> Evaluator:
    """Load the model; ``auto`` selects the engine if there is a GPU, else transformers, which is faster on CPUs.

    Raises:
        FactorError: when it cannot be loaded or rotated.
    """
    import torch

    if kind == "engine" or (kind == "auto" and torch.cuda.is_available()):
        from ropeswitch.factors.search.engine_evaluator import EngineEvaluator

        return EngineEvaluator(facts, objective, dtype, parallel)
    from ropeswitch.factors.search.transformers_evaluator import TransformersEvaluator

    if parallel != 1:
        raise FactorError(f"--parallel: {parallel} applies to the engine only")
    return TransformersEvaluator(facts, objective, dtype)


def files_beside(output: str | Path) -> Files:
    """Return the files of a search whose result goes to ``output``: the same name with other suffixes."""
    stem = Path(output).with_suffix("")
    return Files(
        checkpoint=stem.with_name(f"{stem.name}.checkpoint.json"),
        log=stem.with_name(f"{stem.name}.log.jsonl"),
        plot=stem.with_name(f"{stem.name}.png"),
    )
