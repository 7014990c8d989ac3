"""``ropeswitch factors search`` and ``extend`` on passkey-tiny, from the command line to the file."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.factors.file import LadderFile, load, save
from ropeswitch.factors.search import extend as extend_module
from ropeswitch.factors.search.job import Job
from ropeswitch.factors.search.run import Result
from ropeswitch.server.cli import main
from tests.factors.conftest import MODEL

SMALL = ["--documents", "1", "--population", "3", "--mutations", "1", "--crossovers", "1", "--parents", "3"]
SMALL += ["--iterations", "1"]


def search(model: str, texts: Path, *more: str) -> int:
    return main(["factors", "search", model, "--text", str(texts), *SMALL, *more])


def test_from_a_model_to_a_ladder(plain: str, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A first search, one on top of it for twice the length, and one for half the window below it."""
    assert search(plain, texts, "--length", "320", "-o", "first.json") == 0
    assert capsys.readouterr().out.startswith("wrote first.json: 320: perplexity ")
    first = load("first.json")
    assert (first.theta, first.ladder.names, first.ladder.max_length) == (10000.0, ("320",), 320)
    assert {path.name for path in Path().iterdir()} == {"first.json", "first.checkpoint.jsonl"}

    assert search(plain, texts, "--length", "640", "--from", "first.json", "-o", "second.json", "--name", "long") == 0
    second = load("second.json").ladder.sets[0]
    multiples = 100 * np.divide(second.factors, first.ladder.sets[0].factors)
    np.testing.assert_allclose(multiples, np.rint(multiples), atol=1e-9)
    assert multiples.max() <= 250 and second.name == "long"

    assert search(plain, texts, "--recover", "64,128", "--from", "second.json", "-o", "ladder.json") == 0
    ladder = load("ladder.json").ladder
    assert ladder.names == ("64", "128", "long")
    assert {each.scale for each in ladder.sets} == {second.scale}
    assert Path("ladder.64.checkpoint.jsonl").exists() and Path("ladder.128.checkpoint.jsonl").exists()
    # A model's own factors are recovered from, too.
    assert search(MODEL, texts, "--recover", "64", "-o", "own.json") == 0
    assert load("own.json").ladder.names == ("64", "short", "long")
    capsys.readouterr()
    made = FactorLadder((FactorSet("a", 512, (2.0,) * 16),))
    save("other.json", LadderFile(made, 500000.0))
    for flags in (["--length", "1k"], ["--recover", "64"]):
        assert search(MODEL, texts, *flags, "--from", "other.json", "-o", "out.json") == 2
        assert "--from: made for rope_theta 500000, but" in capsys.readouterr().err


def test_models_that_cannot_be_searched(
    plain: str, texts: Path, broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(model: str) -> str:
        assert main(["factors", "search", model, "--text", str(texts), "--length", "512", "-o", "o.json", *SMALL]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    def changed(name: str, **rope: object) -> str:
        shutil.copytree(plain, tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        config |= {"model_type": "llama", "rope_parameters": {"rope_theta": 10000.0} | rope}
        del config["original_max_position_embeddings"]
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        return str(tmp_path / name)

    partial = tmp_path / "partial"
    shutil.copytree(plain, partial)
    weights = load_file(partial / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    assert "perplexity: nan for position interpolation already" in error(broken)
    assert "cannot be opened" in error("not-a-model")
    assert "is already extended by rope_type 'yarn'" in error(changed("scaled", rope_type="yarn", factor=4.0))
    assert "weights are missing or have the wrong shape: model.norm.weight" in error(str(partial))
    assert not Path("o.json").exists()


HOOK = """
import os, shutil, sys
from pathlib import Path
with open("calls.txt", "a") as calls:
    model = Path(os.environ["EXTEND_MODEL"])
    print(os.environ["EXTEND_SET"], os.environ["EXTEND_LENGTH"], model.name, file=calls)
if "fail" in sys.argv:
    sys.exit(3)
assert Path(os.environ["EXTEND_FACTORS"]).is_file()
shutil.copytree(model, os.environ["EXTEND_OUTPUT"], dirs_exist_ok=True)
"""


def fixed_result(job: Job, _: Path) -> Result:
    """What a search may find."""
    base = job.base.factors if job.base is not None and not job.recover else (1.0,) * 16
    factors = tuple(1.07 * factor for factor in base)
    return Result(FactorSet(job.name, job.settings.length, factors), 10000.0, 2.0)


@pytest.mark.parametrize("searching", [False, pytest.param(True, marks=pytest.mark.full)])
def test_extending_step_by_step(
    searching: bool, plain: str, texts: Path, folder: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The hook fails, the next run goes on there; every stage leaves its file, and one ladder comes out."""
    if not searching:
        monkeypatch.setattr(extend_module, "run_job", fixed_result)
    (folder / "hook.py").write_text(HOOK)
    hook = f"{sys.executable} hook.py"

    def extend(command: str, *flags: str) -> int:
        more = ["--lengths", "288,320", "--final", "384", "--recover", "64", "-o", "out.json", "--hook", command]
        return main(["factors", "extend", plain, "--text", str(texts), *more, *SMALL, *flags])

    assert extend(f"{hook} fail") == 2
    assert f"--hook: '{hook} fail' exited with code 3 for set '288'" in capsys.readouterr().err
    assert not Path("out.json").exists()
    assert extend(hook) == 0
    assert capsys.readouterr().out == (
        "wrote out.json: 64 up to 64 tokens, 288 up to 288 tokens, 320 up to 320 tokens, 384 up to 384 tokens\n"
    )
    assert (folder / "calls.txt").read_text().splitlines() == [
        "288 288 plain", "288 288 plain", "320 320 model-288"
    ]  # fmt: skip
    ladder, work = load("out.json").ladder, folder / "out-work"
    for each in ladder.sets:
        assert load(work / f"{each.name}.json").ladder.sets == (each,)
    multiples = 100 * np.divide(ladder.sets[3].factors, ladder.sets[2].factors)
    np.testing.assert_allclose(multiples, np.rint(multiples), atol=1e-9)
    assert max(ladder.sets[0].factors) <= max(ladder.sets[2].factors)
    # All stages are done: another run only puts the file together.
    before = {path: path.stat().st_mtime_ns for path in work.iterdir()}
    Path("out.json").unlink()
    assert extend(f"{hook} fail") == 0
    assert extend(hook, "-o", "other.json", "--work", str(work), "--seed", "7") == 2
    assert f"{str(work)!r} contains an extension with another search" in capsys.readouterr().err
    (texts / "later.txt").write_text("changed")
    assert extend(hook, "-o", "other.json", "--work", str(work)) == 2
    (texts / "later.txt").unlink()
    assert f"{str(work)!r} contains an extension with another text" in capsys.readouterr().err
    assert load("out.json").ladder == ladder and before == {path: path.stat().st_mtime_ns for path in work.iterdir()}
