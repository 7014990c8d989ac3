"""The files that the pages' commands name and the repository lacks: models, factors and texts, small."""

import shutil
from pathlib import Path

from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from tests.docs.pages import ROOT
from tests.exactness.checkpoints import ladder_file
from tests.exactness.draft_models import LONGEST, ROPE, WINDOW, eagle3
from tests.passkey_tiny import without_factors
from tests.passkey_tiny.passkey import filler_text
from tests.server.checkpoint import byte_tokenizer


def fill(folder: Path, page: str) -> None:
    """Put the files that any page names into a folder, with the MODEL of this one."""
    if page == "docs/drafts.md":
        drafts(folder)
    elif page == "docs/factor-evaluation.md":
        (folder / "MODEL").symlink_to(BUNDLED_MODEL)
    else:
        without_factors(BUNDLED_MODEL, folder / "MODEL")
    if page == "docs/start.md":
        # Other pages make it.
        shutil.copy(BUNDLED_FACTORS, folder / "llama2.json")
    without_factors(BUNDLED_MODEL, folder / "Llama-2-7b-hf")
    plans = ROOT / "docs" / "plans"
    (folder / "Qwen").mkdir()
    (folder / "Qwen" / "Qwen3-8B").symlink_to(plans / "qwen3-8b")
    (folder / "llama2-7b").symlink_to(plans / "llama2-7b")
    # Texts of some 1,000 tokens for the bundled model's tokenizer.
    (folder / "books").mkdir()
    for number in range(14):
        (folder / "books" / f"{number}.txt").write_text(filler_text(number, 120))
    shutil.copy(BUNDLED_MODEL / "config.json", folder)
    # Factors for heads of 128 values, up to 2,048k tokens.
    sets = [{"name": "2048k", "max_length": 2097152, "factors": [1 + i for i in range(64)]}]
    for name in ("factors.json", "new-factors.json", "FACTORS.json"):
        ladder_file(folder / name, sets)
    # Ascending factors, one row for each of 32 layers, as the published files.
    for name, pairs in (("la2", 16), ("mis", 64)):
        for length in ("8k", "1024k", "2048k"):
            row = ",".join(str(1 + i / 2) for i in range(pairs))
            (folder / f"{length}_{name}_128k.csv").write_text(f"{row}\n" * 32)
    hook = folder / "fine-tune.sh"
    hook.write_text('#!/bin/sh\nmkdir -p "$EXTEND_OUTPUT" && cp -r "$EXTEND_MODEL"/. "$EXTEND_OUTPUT"\n')
    hook.chmod(0o755)


def drafts(folder: Path) -> None:
    """A model with a draft head, and the factors of both."""
    tokenizer = byte_tokenizer()
    pair = eagle3(folder / "pair", vocab_size=len(tokenizer))
    tokenizer.save_pretrained(pair.target)
    (folder / "MODEL").symlink_to(pair.target)
    (folder / "HEAD").symlink_to(folder / "pair" / "draft")
    lengths = {"short": WINDOW, "long": LONGEST}
    sets = [{"name": name, "max_length": n, "factors": ROPE[f"{name}_factor"]} for name, n in lengths.items()]
    ladder_file(folder / "FILE", sets)
