"""``ropeswitch factors``: what it writes, what it prints, and that wrong input ends with exit code 2 and one line."""

import json
from pathlib import Path

import pytest

from ropeswitch.factors.file import load
from ropeswitch.server.cli import main

CONFIG = {
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "max_position_embeddings": 512,
    "rope_scaling": {"type": "longrope", "short_factor": [1, 1.5], "long_factor": [2, 8]},
}
IMPORT = ["factors", "import", "--set", "8k=8192:short.csv", "--set", "2048k=2097152:long.csv", "-o", "out.json"]
SCALED = [*IMPORT, "--scale", "longrope", "--original-length", "4096"]


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    (folder / "short.csv").write_text("0.9\n3\n2\n")
    (folder / "long.csv").write_text("1,100,543.68\n" * 32)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def test_import_csv(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--rope-theta", "10000", "--start-tokens", "8", "--description", "LLaMA2"]
    assert main([*SCALED, *more]) == 0
    assert capsys.readouterr().out.startswith("wrote out.json: 2 sets: 8k up to 8192 tokens, ")
    content = load("out.json")
    short, long = content.ladder.sets
    assert (content.theta, content.description) == (10000.0, "LLaMA2")
    assert (short.name, short.max_length, short.factors) == ("8k", 8192, (0.9, 3.0, 2.0))
    assert (short.scale, short.start_tokens) == (long.scale, 8)
    assert (long.name, long.max_length, long.factors) == ("2048k", 2097152, (1.0, 100.0, 543.68))
    assert (long.scale, long.start_tokens) == (pytest.approx(1.75**0.5, rel=1e-15), 8)


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["factors", "import", "config.json", "-o", "out.json"]) == 0
    assert load("out.json").theta == 10000.0
    main([*SCALED, "--force", "--description", "LLaMA2", "--start-tokens", "4"])
    capsys.readouterr()
    assert main(["factors", "show", "out.json"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "LLaMA2",
        "rotary dimension 6, rope_theta from the model",
        "set    tokens           factors  lowest  highest  rising  scale    start tokens",
        "8k     1 to 8192        3        0.9     3        no      1.32288  4",
        "2048k  8193 to 2097152  3        1       543.68   yes     1.32288  4",
    ]
