"""Makes the bundled model: ``python -m ropeswitch.models.miniature --out FOLDER``.

Stop it at any time and start it again with the same folders: it goes on where it was.
"""

import argparse
import sys
from pathlib import Path

import torch

from ropeswitch.factors.errors import InputError
from ropeswitch.factors.whole_file import save_text
from ropeswitch.models.miniature import experiments, recipe
from ropeswitch.models.miniature.card import Results
from ropeswitch.models.miniature.page import UNTUNED
from ropeswitch.models.miniature.shape import WINDOW
from ropeswitch.models.miniature.stages import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ropeswitch.models.miniature", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the finished model")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="checkpoints and searches (default: OUT-work)")
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="then measure it; the results go there")
    parser.add_argument("--window", type=int, default=WINDOW, metavar="TOKENS", help=f"of the base model ({WINDOW})")
    parser.add_argument("--small", action="store_true", help="a tiny run of every stage, in a minute; to try")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all)")
    args = parser.parse_args()
    for name, least in (("threads", 1), ("window", 256)):
        value = getattr(args, name)
        if value is not None and value < least:
            parser.error(f"--{name}: {value} must be at least {least}")
    if args.small and args.window != WINDOW:
        parser.error(f"--window: {args.window} does not go with --small, whose window is {WINDOW}")
    work = args.work or Path(f"{args.out}-work")
    for name, folder in (("out", args.out), ("work", work), ("measure", args.measure)):
        if folder is not None and folder.exists() and not folder.is_dir():
            parser.error(f"--{name}: {folder} is no folder")
    if work.resolve() in (args.out.resolve(), *args.out.resolve().parents):
        parser.error(f"--work: {work} holds --out, and may be deleted when the model is made")
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        run = Run(recipe.SMALL if args.small else recipe.full(args.window), work, lambda line: print(line, flush=True))
        run.everything(args.out)
        if args.measure is not None:
            measuring = experiments.SMALL if args.small else experiments.full(args.window)
            found = {UNTUNED: experiments.without_tuning(run.base, work, measuring)}
            found |= {path.name: path for path in experiments.with_tuning(args.out, work, measuring)}
            args.measure.mkdir(parents=True, exist_ok=True)
            for name, path in found.items():
                save_text(args.measure / name, Results.published(path.read_text()), overwrite=True)
    except (InputError, FloatingPointError, ValueError, OSError, torch.OutOfMemoryError) as error:
        print(f"miniature: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"miniature: stopped; the same command goes on from {work}", file=sys.stderr)
        return 130
    print(f"model written to {args.out}; {work} may be deleted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
