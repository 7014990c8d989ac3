"""Measures passkey-tiny with Hugging Face: `python -m tests.passkey_tiny.evaluate`.

Every case is run as Hugging Face's rule has it and with each set that is wrong for it forced; a
pass key counts as found if the reply states it twice and states no other number.
"""

import argparse
import json
import platform
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer, Phi3ForCausalLM, PreTrainedTokenizerBase

from tests.passkey_tiny import FOLDER, LIMIT, MAX_LENGTH
from tests.passkey_tiny.generate import generate
from tests.passkey_tiny.passkey import REPLY_TOKENS, found, make_prompt, prompt_ids
from tests.passkey_tiny.rope_sets import SetName

BATCH = 4


@dataclass(frozen=True)
class Case:
    """Prompts of `shortest` to `longest` tokens, chat template included, and the wrong sets."""

    name: str
    shortest: int
    longest: int
    wrong: tuple[SetName, ...]


CASES = (
    Case("below", 40, LIMIT - REPLY_TOKENS, wrong=("long",)),
    Case("crossing", LIMIT - REPLY_TOKENS + 6, LIMIT - 6, wrong=("short", "long")),
    Case("above", LIMIT + 1, MAX_LENGTH - REPLY_TOKENS, wrong=("short",)),
)


@dataclass(frozen=True)
class Result:
    """`forced` is None where Hugging Face's rule chose; found of tries is the measured figure."""

    case: str
    prompt_tokens: tuple[int, int]
    forced: SetName | None
    tries: int
    found: int
    dtype: str


def measure(
    model: Phi3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    case: Case,
    forced: SetName | None,
    tries: int,
    seed: int = 0,
) -> Result:
    """Runs `tries` random prompts, half of them chats, half plain texts, in batches of one length.

    The same seed gives the same prompts whatever is forced.
    """
    rng = random.Random(f"{case.name}-{seed}")
    hits = 0
    for first in range(0, tries, BATCH):
        length = rng.randint(case.shortest, case.longest)
        made = [
            make_prompt(tokenizer, length, rng.getrandbits(32), chat=number % 2 == 0)
            for number in range(first, min(first + BATCH, tries))
        ]
        prompts = [prompt_ids(tokenizer, prompt) for prompt, _ in made]
        replies = generate(model, prompts, REPLY_TOKENS, forced)
        hits += sum(found(tokenizer.decode(reply), digits) for reply, (_, digits) in zip(replies, made, strict=True))
    tokens = (case.shortest, case.longest)
    dtype = str(model.dtype).removeprefix("torch.")
    return Result(case.name, tokens, forced, tries, hits, dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=FOLDER, help="folder of the model")
    parser.add_argument("--tries", type=int, default=100, help="tries of each case and set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    results = []
    print(f"{'dtype':10}{'case':10}{'prompt tokens':>15}{'set':>8}{'found':>12}")
    for dtype in arguments.dtype:
        model = Phi3ForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, dtype)).eval()
        for case in CASES:
            for forced in (None, *case.wrong):
                result = measure(model, tokenizer, case, forced, arguments.tries, arguments.seed)
                results.append(result)
                tokens = f"{case.shortest} to {case.longest}"
                share = f"{result.found}/{result.tries}"
                print(
                    f"{dtype:10}{case.name:10}{tokens:>15}{forced or 'rule':>8}{share:>12}",
                    flush=True,
                )
    if arguments.json is not None:
        figures = {
            "seed": arguments.seed,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "processor": platform.machine(),
            "results": [asdict(result) for result in results],
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
