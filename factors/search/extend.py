"""Progressive extension: search, fine-tune, search again, recover (LongRoPE, arXiv:2402.13753, section 3.3).

Each completed stage leaves a file or folder under its own name in the work folder. Existing ones are not made again, so a
stopped extension resumes where it was.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.files import object_from_json, read_text, save_text
from ropeswitch.factors.model_facts import ModelFacts, fingerprint
from ropeswitch.factors.rules.lengths import length_name
from ropeswitch.factors.search.job import Job, check_not_extended, run_job

# Makes a search from a length, the model, the base set and whether it is a recovery.
MakeJob = Callable[[int, str, FactorSet | None, bool], Job]


@dataclass(frozen=True)
class Extension:
    """A progressive extension.

    Each of ``lengths`` is searched on ``model``, which ``hook`` (see :func:`fine_tuned`) then fine-tunes for it. ``final``
    and the shorter lengths to ``recover`` are searched on the result. Stages leave their results in the folder ``work``.
    A FactorError names lengths out of order, or a hook that is no command.
    """

    model: str
    lengths: tuple[int, ...]
    final: int
    recover: tuple[int, ...]
    hook: str
    work: Path

    def __post_init__(self) -> None:
        if self.final <= self.lengths[-1]:
            raise FactorError(f"--final: {self.final} must exceed the last of --lengths, {self.lengths[-1]}")
        if self.recover and self.recover[-1] >= self.lengths[0]:
            raise FactorError(f"--recover: {self.recover[-1]} must be below the first of --lengths, {self.lengths[0]}")
        if not self.command:
            raise FactorError("--hook: must be a command that fine-tunes")

    @property
    def command(self) -> list[str]:
        """The hook's program and arguments."""
        try:
            return shlex.split(self.hook)
        except ValueError as error:
            raise FactorError(f"--hook: {self.hook!r} is not a valid command: {error}") from error


def extend(extension: Extension, make_job: MakeJob) -> file.LadderFile:
    """Run all unfinished stages, and combine their sets by increasing length."""
    facts = ModelFacts.load(extension.model)
    check_not_extended(facts, "extend needs the pre-trained model")
    _claim(extension, make_job(extension.final, "", None, False))
    sets = [_searched(extension, make_job, length, extension.model, None) for length in extension.lengths]
    model = extension.model
    for each in sets:
        model = str(fine_tuned(extension, model, each))
    tuned = sets[-1]
    final = _searched(extension, make_job, extension.final, model, tuned)
    recovered = [_searched(extension, make_job, length, model, tuned, recover=True) for length in extension.recover]
    ladder = FactorLadder.checked(FactorLadder((*recovered, *sets, final)).to_json())
    about = (
        f"extended to {length_name(tuned.max_length)} by fine-tuning and to {length_name(extension.final)} by search"
    )
    return file.LadderFile(ladder, facts.rope.theta, f"{Path(extension.model).name or extension.model}, {about}")


def _claim(extension: Extension, job: Job) -> None:
    """Create the work folder and record its extension there; refuse a folder that belongs to another extension."""
    task = {
        "model": fingerprint(extension.model),
        "lengths": [*extension.lengths, extension.final],
        "recover": list(extension.recover),
        "text": [f"{each.name} {each.stat().st_size}" for each in sorted(Path(job.text).glob("*"))] or job.text,
        "search": asdict(replace(job, model="", text="")),
    }
    path = extension.work / "extension.json"
    try:
        extension.work.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            save_text(path, json.dumps(task, indent=1) + "\n")
        before = object_from_json(read_text(path))
    except (OSError, FactorError) as error:
        raise FactorError(f"--work: {str(path)!r} cannot be used: {error}") from error
    for name, value in json.loads(json.dumps(task)).items():
        if before.get(name) != value:
            raise FactorError(
                f"--work: {str(extension.work)!r} contains an extension with another {name}; use another folder"
            )


def fine_tuned(extension: Extension, model: str, factor_set: FactorSet) -> Path:
    """Fine-tune ``model`` for one set with the hook, unless that was done before; return the model's folder.

    The hook gets these environment variables: ``EXTEND_MODEL``, ``EXTEND_FACTORS`` (a factor file), ``EXTEND_SET`` (the
    set's name), ``EXTEND_LENGTH`` (tokens) and ``EXTEND_OUTPUT``, the folder where it must leave the model and its
    tokenizer. Files that a stopped hook left there are kept for the next run.
    """
    folder = extension.work / f"model-{factor_set.name}"
    if folder.exists():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(exist_ok=True)
    environment = {
        "EXTEND_MODEL": model,
        "EXTEND_FACTORS": str(extension.work / f"{factor_set.name}.json"),
        "EXTEND_SET": factor_set.name,
        "EXTEND_LENGTH": str(factor_set.max_length),
        "EXTEND_OUTPUT": str(partial),
    }
    try:
        code = subprocess.run(extension.command, env=os.environ | environment, check=False).returncode
    except OSError as error:
        raise FactorError(f"--hook: {extension.hook!r} cannot be run: {error.strerror or error}") from error
    if code:
        raise FactorError(
            f"--hook: {extension.hook!r} exited with code {code} for set {factor_set.name!r}; run again to resume"
        )
    if (pairs := ModelFacts.load(str(partial)).rope.pairs) != len(factor_set.factors):
        raise FactorError(f"--hook: the fine-tuned model has {pairs} rotary pairs instead of {len(factor_set.factors)}")
    partial.rename(folder)
    return folder


def _searched(
    extension: Extension, make_job: MakeJob, length: int, model: str, base: FactorSet | None, *, recover: bool = False
) -> FactorSet:
    output = extension.work / f"{length_name(length)}.json"
    if not output.exists():
        result = run_job(make_job(length, model, base, recover), output.with_suffix(".checkpoint.jsonl"))
        file.save(output, file.LadderFile(FactorLadder((result.factor_set,)), result.theta))
    return file.load(output).ladder.sets[0]
