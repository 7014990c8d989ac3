"""What the recipe does, stage after stage; each leaves a folder or a file, and one that is there is not made again."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from ropeswitch.factors import file
from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.factors.search.job import Job, files_beside, run_job
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.factors.whole_file import save_text
from ropeswitch.models.miniature import anchor
from ropeswitch.models.miniature.recipe import Recipe
from ropeswitch.models.miniature.shape import RATIO, THETA, fresh_model, model_config
from ropeswitch.models.miniature.texts import text_folder
from ropeswitch.models.miniature.tokenizer import build_tokenizer
from ropeswitch.models.miniature.train import Stage, train

# Output limit of a request that sets none, in tokens: the model does not end its texts.
MAX_NEW_TOKENS = 512


@dataclass(frozen=True)
class Run:
    """One making of the miniature in a folder of its own."""

    recipe: Recipe
    work: Path
    tell: Callable[[str], None] = print

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return build_tokenizer(RATIO * self.recipe.window)

    @property
    def base(self) -> Path:
        """The model before it is extended."""
        return self.work / self.recipe.base[-1].name

    def everything(self, out: Path) -> None:
        """All stages, and the finished model in ``out``."""
        anchor.register()
        self._check_work()
        model: Path | None = None
        for stage in self.recipe.base:
            model = self._trained(stage, model)
        assert model is not None
        sets = [self._searched(model, each, self._name("x", each), None) for each in self.recipe.searches]
        for number, found in enumerate(sets):
            model = self._trained(self.recipe.tuning_with(number, found), model)
        tuned_with = sets[-1]
        longest = self._searched(model, self.recipe.second, self._name("x", self.recipe.second), tuned_with)
        recovered = [
            self._searched(model, each, self._name("r", each), tuned_with, recover=True)
            for each in self.recipe.recoveries
        ]
        # Sets the model was tuned with earlier are not served: the last one is no worse at their lengths (models/README.md).
        self._write(model, FactorLadder((*recovered, tuned_with, longest)), out)

    def _name(self, kind: str, search: SearchSettings) -> str:
        return f"{kind}{search.length // self.recipe.window}"

    def _check_work(self) -> None:
        """Remember the recipe in the folder, which holds nothing that another one made.

        Raises:
            ValueError: when it is another recipe's.
        """
        path, recipe = self.work / "recipe.json", json.dumps(asdict(self.recipe), indent=1)
        if path.exists() and path.read_text() != recipe:
            raise ValueError(f"{self.work} belongs to a run of another recipe; delete it or give another --work")
        self.work.mkdir(parents=True, exist_ok=True)
        save_text(path, recipe, overwrite=True)

    def _trained(self, stage: Stage, start: Path | None) -> Path:
        folder = self.work / stage.name
        if (folder / "config.json").exists():
            return folder
        self.tell(f"training {stage.name}: {stage.steps} steps")

        def make() -> LlamaForCausalLM:
            return fresh_model(self.tokenizer, self.recipe.window) if start is None else _load(start)

        model = train(stage, make, self.tokenizer, self.work / f"{stage.name}-training", self.tell)
        _save(model, self.tokenizer, folder)
        return folder

    def _searched(
        self, model: Path, settings: SearchSettings, name: str, base: FactorSet | None, *, recover: bool = False
    ) -> FactorSet:
        output = self.work / f"{name}.json"
        if not output.exists():
            self.tell(f"searching {name}: {settings.evaluations} candidates at {settings.length} tokens")
            job = Job(
                str(model),
                str(text_folder(self.work, "search", settings.length)),
                settings,
                name,
                base=base,
                recover=recover,
                scale=str(self.recipe.scale),
                evaluator="transformers",
            )
            result = run_job(job, files_beside(output))
            file.save(output, file.LadderFile(FactorLadder((result.factor_set,)), THETA))
        return file.load(output).ladder.sets[0]

    def _write(self, tuned: Path, ladder: FactorLadder, out: Path) -> None:
        """The model with its config's two sets, the last recovered and the longest, and all of them as a factor file."""
        model = _load(tuned)
        short = ladder.sets[len(self.recipe.recoveries) - 1]
        config = model_config(self.tokenizer, short, ladder.sets[-1], self.recipe.window)
        model.config = config
        model.to(torch.bfloat16)
        model.generation_config.max_new_tokens = MAX_NEW_TOKENS
        model.generation_config._from_model_config = False
        _save(model, self.tokenizer, out)
        file.save(out / "factors.json", file.LadderFile(ladder, THETA), overwrite=True)


def _load(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype="float32")


def _save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The folder appears when it is complete; other files of an earlier one are kept."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(new.iterdir(), key=lambda each: each.name == "config.json"):
        path.replace(folder / path.name)
    new.rmdir()
