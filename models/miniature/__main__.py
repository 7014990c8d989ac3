"""Makes the bundled model: ``python -m ropeswitch.models.miniature --out FOLDER``.

Stop it at any time and start it again with the same folders: it goes on where it was.
"""

import argparse
import sys
from pathlib import Path

import torch

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.models.miniature import experiments
from ropeswitch.models.miniature.recipe import FULL, SMALL
from ropeswitch.models.miniature.stages import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ropeswitch.models.miniature", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="then measure it, as models/README.md shows")
    parser.add_argument("--out", type=Path, default=BUNDLED_MODEL, help="folder of the finished model")
    parser.add_argument("--work", type=Path, help="folder of checkpoints and searches (default: OUT-work)")
    parser.add_argument(
        "--small", action="store_true", help="a tiny run of every stage, in a minute; of no use but to try"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    work = args.work or args.out.with_name(args.out.name + "-work")
    measuring = experiments.SMALL if args.small else experiments.FULL
    try:
        run = Run(SMALL if args.small else FULL, work, lambda line: print(line, flush=True))
        run.everything(args.out)
        if args.measure:
            experiments.without_tuning(run.base, work, measuring)
            experiments.with_tuning(args.out, work, measuring)
    except (FactorError, FloatingPointError, ValueError, OSError) as error:
        print(f"miniature: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"miniature: stopped; the same command goes on from {work}", file=sys.stderr)
        return 130
    print(f"model written to {args.out}; {work} may be deleted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
