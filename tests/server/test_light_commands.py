"""Help, refusals and commands without an engine import no heavy package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.configs import PHI4_MINI

HEAVY = "fastapi huggingface_hub matplotlib numpy pydantic torch transformers vllm yaml"
CODE = f"""
import sys
from ropeswitch.server.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("heavy:", *set("{HEAVY}".split()) & set(sys.modules))
sys.exit(code)
"""
RULE = "factors rule yarn --rotary-dim 128 --rope-theta 10000 --original-length 4k --length 8k --json"


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        ("--help", None),
        ("serve --help", None),
        ("factors import config.json -o o.json", None),
        (RULE, None),
        ("plan . --gpu A100-80GB --gpus 8", None),
        ("factors check no.json", "factor file 'no.json': "),
        ("no-such-command", "argument COMMAND: invalid choice: 'no-such-command'"),
        ("serve --ladder nope", "--ladder: 'nope' is unknown; allowed: auto, none, file:PATH"),
    ],
)
def test_nothing_heavy_is_imported(command: str, refusal: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PHI4_MINI))
    run = [sys.executable, "-c", CODE, *command.split()]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if refusal is None else 2), done.stderr
    if refusal is not None:
        assert done.stderr.startswith(f"ropeswitch: error: {refusal}") and done.stderr.count("\n") == 1
    *printed, heavy = done.stdout.splitlines()
    assert heavy == "heavy:" and bool(printed) == (refusal is None)
