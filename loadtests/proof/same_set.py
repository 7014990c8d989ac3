"""Compares ropeswitch, with the set ``32k`` forced, and stock vLLM with static YaRN x4: the same factors at any length.

docs/proof.md cites the output of ``python -m ropeswitch.loadtests.proof.same_set``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ropeswitch.factors.errors import InputError
from ropeswitch.factors.evaluate.corpus import Corpus
from ropeswitch.loadtests.proof.arms import BFLOAT16, FLOAT32, NAME, OURS, STATIC, Arm, serving
from ropeswitch.loadtests.proof.measure import LENGTHS, Length, documents
from ropeswitch.loadtests.proof.ratio import Ratio
from ropeswitch.loadtests.proof.store import Measurement
from ropeswitch.loadtests.proof.texts import corpus
from ropeswitch.models.demo.convert import convert
from ropeswitch.models.demo.source import SMOLLM2, fetch

SET = "32k"


def main() -> int:
    """Measure both servers and print one line for each length; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ropeswitch.loadtests.proof.same_set", description=__doc__)
    parser.add_argument(
        "--work", type=Path, default=Path(".demo"), help="folder for the model and texts (default: .demo)"
    )
    known = [each.tokens for each in LENGTHS]
    parser.add_argument(
        "--lengths", nargs="+", type=int, choices=known, default=[512], help="prompt lengths in tokens (default: 512)"
    )
    parser.add_argument(
        "--documents",
        type=int,
        default=30,
        choices=range(2, 31),
        metavar="N",
        help="documents per length (default: 30)",
    )
    parser.add_argument(
        "--dtype", choices=(FLOAT32, BFLOAT16), default=FLOAT32, help="number format (default: float32)"
    )
    args = parser.parse_args()
    lengths = [each for each in LENGTHS if each.tokens in args.lengths]
    try:
        convert(fetch(SMOLLM2, args.work, _print), args.work / NAME, _print)
        texts = corpus(args.work / "texts")
        ours, theirs = (
            measure(Arm(rotation, args.dtype), args.work / NAME, texts, lengths, args.documents)
            for rotation in (OURS, STATIC)
        )
    except (InputError, OSError) as error:
        print(f"same_set: error: {error}", file=sys.stderr)
        return 2
    for length in lengths:
        print(compared(ours[length.tokens], theirs[length.tokens], args.dtype))
    return 0


def measure(arm: Arm, model: Path, texts: Corpus, lengths: Sequence[Length], most: int) -> dict[int, list[Measurement]]:
    """Return the losses of the first ``most`` documents of each length, by tokens; ropeswitch rotates with :data:`SET`.

    Raises:
        FactorError: if the server gives no usable answer, or rotates with another set.
    """
    with serving(arm, model, chat=False) as target:
        set_name = SET if arm.rotation == OURS else target.sets[0]
        return {
            length.tokens: [work(target, set_name) for _, work in list(documents(texts, model, length))[:most]]
            for length in lengths
        }


def compared(ours: Sequence[Measurement], theirs: Sequence[Measurement], dtype: str) -> str:
    """Format one line: the ratio of perplexities with its 95% interval, and the largest relative difference of a loss.

    Args:
        ours: ropeswitch's losses, of one length.
        theirs: Static YaRN's losses of the same documents, in the same order.
        dtype: Number format, for the line.

    Raises:
        ValueError: if the documents differ.
    """
    if [each.item for each in ours] != [each.item for each in theirs]:
        raise ValueError("the servers were given different documents")
    ratio = Ratio.of([each.nll / each.tokens for each in ours], [each.nll / each.tokens for each in theirs])
    largest = max(abs(mine.nll / stock.nll - 1) for mine, stock in zip(ours, theirs, strict=True))
    percent = ", ".join(f"{100 * (each - 1):+.5f}%" for each in (ratio.value, ratio.low, ratio.high))
    return (
        f"{ours[0].item.length} tokens, {len(ours)} documents, {dtype}: ropeswitch / static perplexity, with 95% interval: "
        f"{percent}; largest relative difference of a document's loss: {largest:.1e}"
    )


def _print(line: str) -> None:
    print(f"same_set: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
