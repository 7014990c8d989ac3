"""The ``ropeswitch factors tune`` command: a ladder that is chosen by measurement."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropeswitch.factors import file
from ropeswitch.factors.evaluate.statistics import wilson
from ropeswitch.factors.factor_set import FactorError, LayerFactors
from ropeswitch.factors.files import check_target, save_bytes
from ropeswitch.factors.numbers import whole
from ropeswitch.factors.rules.lengths import length_name, parse_length, parse_lengths
from ropeswitch.factors.text_table import table

if TYPE_CHECKING:
    from ropeswitch.factors.tune.run import Rung

EXAMPLE = """example:
  ropeswitch factors tune Qwen3-0.6B --text books/ --max-model-len 128k -o tuned.json

At each length, it compares the set of the next longer one, the unscaled set, the automatic ladder's and every rule's, and
factors learned by gradient. It keeps the simplest set that none beats, if other texts confirm it. Measurements are kept in
FILE.tune.jsonl: the same command resumes. A plot is written to FILE.svg.
"""
FORMAT = "ropeswitch-tune/1"
_LEAST = {"documents": 2, "tries": 0, "steps": 0, "seed": 0}


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add ``tune`` to the commands of ``ropeswitch factors``."""
    about = "choose a ladder by measurement on your own texts"
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("tune", help=about, epilog=EXAMPLE, formatter_class=raw)
    add = parser.add_argument
    add("model", metavar="MODEL", help="model folder or Hugging Face name")
    add("--text", required=True, metavar="DIR", help="folder of .txt files, or of .jsonl files with a text per line")
    add("--max-model-len", required=True, metavar="N", help="longest sequence to serve, such as 131072 or 128k")
    add("-o", "--output", required=True, metavar="FILE", help="factor file to write")
    rungs = "lengths to choose sets for, beside the ladder's own (default: powers of 2, and 1.5 times those)"
    add("--rungs", metavar="N,N", help=rungs)
    ladder = "ladder to improve on, as in ropeswitch serve (default: auto)"
    add("--ladder", default="auto", metavar="LADDER", help=ladder)
    given = "factor file whose sets are compared too, such as a search's"
    add("--candidates", metavar="FILE", help=given)
    add("--documents", default="8", metavar="N", help="documents to choose by, and others to confirm by (default: 8)")
    add("--tries", default="20", metavar="N", help="pass keys of the chosen set and of the automatic one (default: 20)")
    add("--steps", default="3", metavar="N", help="most steps of learning by gradient; 0 for none (default: 3)")
    add("--by-layer", action="store_true", help="also learn factors for each layer, and compare them at every rung")
    add("--seed", default="0", metavar="N", help="which documents are for what (default: 0)")
    types = ("float32", "bfloat16", "float16")
    add("--dtype", default=types[0], choices=types, help="dtype of the weights (default: float32)")
    add("--force", action="store_true", help="overwrite FILE if it exists; FILE.svg always is")
    parser.set_defaults(func=_tune)


def default_rungs(window: int, longest: int) -> tuple[int, ...]:
    """Return the powers of 2 above the window and 1.5 times them, up to ``longest``, and that itself."""
    powers = [1 << power for power in range(window.bit_length() - 1, longest.bit_length())]
    found = {length for power in powers for length in (power, power * 3 // 2)}
    return (*sorted(length for length in found if window < length < longest), longest)


def _tune(args: argparse.Namespace) -> int:
    """Run the command; Ctrl-C prints one line and ends it with exit code 130."""
    import torch

    try:
        return _tuned(args)
    except KeyboardInterrupt:
        print("\nfactors tune: stopped; run the same command again to resume", file=sys.stderr)
        return 130
    except (RuntimeError, MemoryError) as error:
        # torch's allocator of CPUs raises a RuntimeError without a class of its own.
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(error):
            raise
        raise FactorError(
            f"--max-model-len: {args.max_model_len} needs more memory than there is; use --dtype bfloat16, --steps 0, or a "
            "shorter length"
        ) from error


def _tuned(args: argparse.Namespace) -> int:
    import torch

    from ropeswitch.factors.evaluate.corpus import Corpus
    from ropeswitch.factors.kept import Kept
    from ropeswitch.factors.ladders.choice import parse
    from ropeswitch.factors.ladders.choose import check_length, choose
    from ropeswitch.factors.local_model import LocalModel
    from ropeswitch.factors.model_facts import fingerprint
    from ropeswitch.factors.tune.measure import Texts
    from ropeswitch.factors.tune.plot import draw
    from ropeswitch.factors.tune.run import Settings, Tuner, check_texts, ladder_of

    longest, output = parse_length("--max-model-len", args.max_model_len), Path(args.output)
    counts = {name: whole(f"--{name}", getattr(args, name), least, 10**6) for name, least in _LEAST.items()}
    plot = output.with_name(output.name + ".svg")
    for path in (output, plot):
        check_target("--output", path, overwrite=args.force or path == plot)
    given = () if args.candidates is None else file.load(args.candidates).ladder.sets
    corpus, model = Corpus.read(args.text), LocalModel.load(args.model, args.dtype)
    if args.by_layer:
        layers = len(getattr(model.model.base_model, "layers", ()))
        if layers < 2 or not counts["steps"]:
            raise FactorError("--by-layer: needs a model with several layers, and --steps above 0; leave it out")
        plain = model.plain_set(4)
        model.losses(
            torch.zeros(1, 4, dtype=torch.int64), replace(plain, layers=(LayerFactors(plain.factors),) * layers)
        )
    for each in given:
        model.check_set(each)
    automatic = choose(parse(args.ladder), model.model.config.get_text_config().to_dict(), longest).ladder
    check_length(longest, automatic)
    native = automatic.sets[0]
    if longest <= native.max_length:
        raise FactorError(
            f"--max-model-len: {longest} must exceed {native.max_length}, the end of the ladder's first set"
        )
    chosen = default_rungs(native.max_length, longest) if args.rungs is None else parse_lengths("--rungs", args.rungs)
    if chosen[0] <= native.max_length or chosen[-1] > longest:
        raise FactorError(f"--rungs: {args.rungs!r} must be above {native.max_length} and at most {longest}")
    # Each of the ladder's own rungs is compared with what replaces it.
    own = {each.max_length for each in automatic.sets[1:] if each.max_length < longest}
    settings = Settings(tuple(sorted({*chosen, *own, longest})), **counts, by_layer=args.by_layer)
    texts = Texts(corpus, model, settings.seed)
    check_texts(texts, settings)
    task = {"format": FORMAT, "model": fingerprint(args.model), "text": corpus.digest, "dtype": args.dtype}
    kept = Kept(
        output.with_name(output.name + ".tune.jsonl"), task | {"window": native.max_length, "seed": settings.seed}
    )
    found = Tuner(model, automatic, texts, kept, settings, given).run()
    about = f"tuned for {Path(args.model).name or args.model}. "
    content = file.LadderFile(ladder_of(found, native), model.rope.theta, about + " ".join(map(_evidence, found)))
    drawn = draw(found)
    file.save(output, content, overwrite=args.force)
    save_bytes(plot, drawn, overwrite=True)
    print(_table(found))
    command = shlex.join(["ropeswitch", "serve", args.model, "--factors", str(output)])
    print(f"\nwrote {output} and {plot}; serve it with\n  {command}")
    return 0


def _evidence(rung: "Rung") -> str:
    found = rung.confirmed
    each, whole = found.beyond, found.whole
    return (
        f"{length_name(rung.length)}: {each.source}; on {found.documents} other texts, perplexity beyond the "
        f"window {each.ratio:.4f} ({each.low:.4f} to {each.high:.4f}) times the automatic ladder's, of all tokens "
        f"{whole.ratio:.4f} ({whole.low:.4f} to {whole.high:.4f}); pass keys {_keys(found.keys, found.tries)} against "
        f"{_keys(found.automatic_keys, found.tries)}."
    )


def _keys(found: int, tries: int) -> str:
    low, high = wilson(found, tries) if tries else (0, 1)
    return f"{found} of {tries} ({low:.0%} to {high:.0%})"


def _table(rungs: Sequence["Rung"]) -> str:
    """Format everything that was compared, then the chosen sets on the texts to confirm by."""
    compared: list[tuple[str, ...]] = [("tokens", "compared", "perplexity", "95% interval")]
    chosen: list[tuple[str, ...]] = [("tokens", "chosen", "texts", *compared[0][2:], "all", "pass keys", "auto's")]
    notes = ["perplexity: beyond the window, as a ratio to the automatic ladder's; intervals are of 95%"]
    for rung in rungs:
        name, found = length_name(rung.length), rung.confirmed
        for each in sorted(rung.compared, key=lambda candidate: candidate.ratio):
            compared.append((name, each.source, f"{each.ratio:.4f}", f"{each.low:.4f} to {each.high:.4f}"))
        each = found.beyond
        figures = (f"{each.ratio:.4f}", f"{each.low:.4f} to {each.high:.4f}", f"{found.whole.ratio:.4f}")
        keys = (_keys(count, found.tries) for count in (found.keys, found.automatic_keys))
        chosen.append((name, each.source, str(found.documents), *figures, *keys))
        if rung.lost:
            notes.append(f"{name}: worse on each of the first texts: {', '.join(rung.lost)}")
        for other in rung.refuted:
            notes.append(
                f"{name}: {other.beyond.source} was not used: on other texts {other.beyond.ratio:.4f}, of all tokens "
                f"{other.whole.ratio:.4f}, pass keys {other.keys} ({other.automatic_keys})"
            )
    return "\n".join([table(compared), "", table(chosen), *notes])
