"""Runs a search from a model's name and a folder of texts: opens, checks and combines everything it needs."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.model_facts import ModelFacts, fingerprint
from ropeswitch.factors.search.plan import extension, recovery
from ropeswitch.factors.search.run import Result, search
from ropeswitch.factors.search.settings import SearchSettings


@dataclass(frozen=True)
class Job:
    """One search.

    ``base`` is the set that the model was fine-tuned with (None if it was not), ``theta`` the rotary base of its file, and
    ``window`` the original window in tokens, if the model's config no longer contains it. For ``scale`` and ``upper`` see
    ``plan.py``.
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
    dtype: str = "float32"
    window: int | None = None


def run_job(job: Job, checkpoint: Path) -> Result:
    """Run a search, or resume it from its checkpoint; FactorError for an unsuitable model, text, number or file."""
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

    from ropeswitch.factors.local_model import LocalModel
    from ropeswitch.factors.search.objective import make_objective

    objective = make_objective(job.text, facts.tokenizer, job.settings)
    about = {"model": fingerprint(facts.name), "texts": objective.digest, "dtype": job.dtype, "recover": job.recover}
    model = LocalModel.load(facts.name, job.dtype)
    if model.rope.rotary_dim != facts.rope.rotary_dim:
        raise FactorError(
            f"model {facts.name!r}: rotates {model.rope.rotary_dim} values, but its config describes "
            f"{facts.rope.rotary_dim}"
        )
    evaluate = partial(objective.perplexity, model)
    return search(plan, job.settings, evaluate, checkpoint, name=job.name, theta=facts.rope.theta, about=about)


def check_not_extended(facts: ModelFacts, advice: str) -> None:
    """Refuse a model with LongRoPE factors in its config, which the search would ignore; the error ends in ``advice``."""
    if facts.ladder is not None:
        raise FactorError(
            f"model {facts.name!r}: is already extended: its config has LongRoPE factors (sets "
            f"{', '.join(facts.ladder.names)}), which this search would ignore; {advice}"
        )
