"""Measures how fast each evaluator of ``ropeswitch factors search`` judges candidates, and how much their results differ.

The evaluators alternate on two models, the bundled one and a random Llama of four layers of 512, or on a given model.
Documents are random tokens.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.rules.lengths import parse_length
from ropeswitch.factors.search.engine_evaluator import SLOTS
from ropeswitch.factors.search.job import make_evaluator
from ropeswitch.factors.search.model_facts import ModelFacts
from ropeswitch.factors.search.objective import Objective
from ropeswitch.factors.search.plan import extension
from ropeswitch.factors.search.settings import SearchSettings
from ropeswitch.models import BUNDLED_MODEL

KINDS = ("transformers", "engine")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """A model, and the number and length of the documents it scores."""

    name: str
    model: str
    length: int
    documents: int


@dataclass(frozen=True)
class Measured:
    """One line of the table.

    Attributes:
        case: Model and documents.
        rates: Median candidates per second, by evaluator.
        ratio: The engine's rate over transformers', as the median of the rounds' ratios.
        apart: Largest relative difference between a candidate's two perplexities.
    """

    case: Case
    rates: dict[str, float]
    ratio: float
    apart: float


def measure(case: Case, rounds: int, candidates: int, dtype: str) -> Measured:
    """Judge a population with both evaluators alternately; the first round warms up and is not counted."""
    facts = ModelFacts.load(case.model)
    rng = random.Random(0)
    words = range(3, len(facts.tokenizer))
    rows = tuple(tuple(rng.choices(words, k=case.length)) for _ in range(case.documents))
    objective = Objective(rows, (case.length - 1,) * case.documents, ("random",) * case.documents)
    plan = extension(facts, SearchSettings(case.length))
    drawn = np.random.default_rng(0)
    made = [*plan.starts, *(plan.space.draw(drawn) for _ in range(candidates))][:candidates]
    sets = [plan.factor_set(each, "candidate", case.length) for each in made]
    evaluators = {kind: make_evaluator(kind, facts, objective, dtype) for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            start = time.perf_counter()
            found[kind] = evaluators[kind].evaluate(sets)
            taken = time.perf_counter() - start
            if number:
                seconds[kind].append(taken)
            print(f"{case.name}: round {number} of {rounds}, {kind}: {taken:.1f} s", file=sys.stderr)
    for evaluator in evaluators.values():
        evaluator.close()
    apart = np.abs(np.divide(found["engine"], found["transformers"]) - 1).max()
    rates = {kind: candidates / statistics.median(each) for kind, each in seconds.items()}
    ratio = statistics.median(np.divide(seconds["transformers"], seconds["engine"]).tolist())
    return Measured(case, rates, ratio, float(apart))


def random_llama(folder: Path) -> str:
    """Write a random Llama of four layers of 512 with the bundled model's tokenizer, and return its folder."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def table(results: Sequence[Measured]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| model | tokens | documents | transformers, candidates/s | engine, candidates/s "
        "| engine / transformers | relative difference |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in results:
        case, rates = each.case, " | ".join(f"{each.rates[kind]:.3g}" for kind in KINDS)
        about = f"{case.name} | {case.length} | {case.documents}"
        lines.append(f"| {about} | {rates} | {each.ratio:.2f} | {each.apart:.1e} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench-search", description=__doc__)
    parser.add_argument("--model", help="model folder to measure instead of the two built-in models")
    parser.add_argument("--length", help="tokens per document, with --model (default: 1k)")
    parser.add_argument("--documents", type=int, help="number of documents, with --model (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds per evaluator (default: 3)")
    parser.add_argument(
        "--candidates", type=int, default=SLOTS, help=f"candidates per population, at most {SLOTS} (the default)"
    )
    parser.add_argument(
        "--dtype", default="float32", choices=DTYPES, help="data type of the weights (default: float32)"
    )
    options = parser.parse_args(arguments)
    for flag in ("length", "documents"):
        if not options.model and getattr(options, flag) is not None:
            parser.error(f"--{flag}: needs --model; the built-in models have fixed documents")
    documents = 5 if options.documents is None else options.documents
    for flag, value in (("documents", documents), ("rounds", options.rounds)):
        if value < 1:
            parser.error(f"--{flag}: {value} must be at least 1")
    if not 1 <= options.candidates <= SLOTS:
        parser.error(f"--candidates: {options.candidates} must be from 1 to {SLOTS}")
    with tempfile.TemporaryDirectory() as folder:
        if options.model:
            try:
                length = parse_length("--length", options.length or "1k")
            except FactorError as error:
                parser.error(str(error))
            cases = [Case(Path(options.model).name, options.model, length, documents)]
        else:
            cases = [Case(BUNDLED_MODEL.name, str(BUNDLED_MODEL), 1024, 5)]
            cases.append(Case("random Llama, 4 layers of 512", random_llama(Path(folder) / "llama"), 1024, 2))
        try:
            results = [measure(case, options.rounds, options.candidates, options.dtype) for case in cases]
        except FactorError as error:
            parser.error(str(error))
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
