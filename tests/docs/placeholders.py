"""The files that the pages' commands name and the repository lacks: models, factors and texts, small."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from tests.docs.pages import ROOT
from tests.exactness.checkpoints import ladder_file
from tests.exactness.draft_models import LONGEST, ROPE, WINDOW, eagle3
from tests.passkey_tiny.passkey import sentence
from tests.server.checkpoint import byte_tokenizer

PLANS = ROOT / "docs" / "plans"


def plain(folder: Path) -> None:
    """The bundled model with a config without factors, as before it was extended."""
    shutil.copytree(BUNDLED_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    (folder / "config.json").write_text(json.dumps(config))


def books(folder: Path) -> None:
    """Three texts of some 1,000 tokens for the bundled model's tokenizer."""
    folder.mkdir()
    for number in range(3):
        rng = random.Random(number)
        (folder / f"{number}.txt").write_text("".join(sentence(rng) for _ in range(120)).strip())


def csv(path: Path, values: int) -> None:
    """Ascending factors, one row for each of 32 layers, as the published files."""
    path.write_text((",".join(str(1 + i / 2) for i in range(values)) + "\n") * 32)


def ladder(path: Path) -> None:
    """A factor file for heads of 128 values, up to 2,048k tokens."""
    ladder_file(path, [{"name": "2048k", "max_length": 2097152, "factors": [1 + i for i in range(64)]}])


def deploy(folder: Path) -> None:
    (folder / "Qwen").mkdir()
    (folder / "Qwen" / "Qwen3-8B").symlink_to(PLANS / "qwen3-8b")
    (folder / "llama2-7b").symlink_to(PLANS / "llama2-7b")
    for name in ("factors.json", "new-factors.json", "FACTORS.json"):
        ladder(folder / name)


def drafts(folder: Path) -> None:
    tokenizer = byte_tokenizer()
    pair = eagle3(folder / "pair", vocab_size=len(tokenizer))
    tokenizer.save_pretrained(pair.target)
    (folder / "MODEL").symlink_to(pair.target)
    (folder / "HEAD").symlink_to(folder / "pair" / "draft")
    lengths = {"short": WINDOW, "long": LONGEST}
    sets = [{"name": name, "max_length": n, "factors": ROPE[f"{name}_factor"]} for name, n in lengths.items()]
    ladder_file(folder / "FILE", sets)


def evaluation(folder: Path) -> None:
    (folder / "MODEL").symlink_to(BUNDLED_MODEL)
    books(folder / "books")


def factors(folder: Path) -> None:
    plain(folder / "MODEL")
    for name in ("8k_la2_128k.csv", "2048k_la2_128k.csv"):
        csv(folder / name, 16)
    shutil.copy(BUNDLED_MODEL / "config.json", folder)


def million(folder: Path) -> None:
    for name in ("8k_mis_128k.csv", "1024k_mis_128k.csv", "2048k_mis_128k.csv"):
        csv(folder / name, 64)


def search(folder: Path) -> None:
    plain(folder / "Llama-2-7b-hf")
    books(folder / "books")
    hook = folder / "fine-tune.sh"
    hook.write_text('#!/bin/sh\nmkdir -p "$EXTEND_OUTPUT" && cp -r "$EXTEND_MODEL"/. "$EXTEND_OUTPUT"\n')
    hook.chmod(0o755)


def start(folder: Path) -> None:
    plain(folder / "MODEL")
    books(folder / "books")
    shutil.copy(BUNDLED_FACTORS, folder / "llama2.json")


PLACEHOLDERS: dict[str, Callable[[Path], None]] = {
    "deploy/helm/ropeswitch/README.md": deploy,
    "docs/deploy.md": deploy,
    "docs/drafts.md": drafts,
    "docs/factor-evaluation.md": evaluation,
    "docs/factor-search.md": search,
    "docs/factors.md": factors,
    "docs/million.md": million,
    "docs/start.md": start,
}
"""What puts a page's files into an empty folder."""
