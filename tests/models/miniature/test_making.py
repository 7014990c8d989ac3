"""The recipe from nothing at a tiny scale: what is stopped goes on, and the result is a model with a ladder that serves."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from ropeswitch.factors import file
from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.models.miniature import anchor, experiments, page, stages, train
from ropeswitch.models.miniature.__main__ import main
from ropeswitch.models.miniature.card import Results
from ropeswitch.models.miniature.page import UNTUNED
from ropeswitch.models.miniature.recipe import FULL, SMALL
from ropeswitch.models.miniature.shape import RATIO, WINDOW, attention_factor, fresh_model
from ropeswitch.models.miniature.stages import Run
from ropeswitch.models.miniature.tokenizer import build_tokenizer

COMMAND = [sys.executable, "-m", "ropeswitch.models.miniature", "--small", "--threads", "1"]


def make(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "--out", str(folder), *flags], capture_output=True, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "model"
    done = make(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.full
def test_the_ladder_and_the_config_say_the_same(made: Path) -> None:
    ladder = file.load(made / "factors.json").ladder
    assert ladder.names == ("r1", "x3", "x6")
    assert [each.max_length for each in ladder.sets] == [512, 1536, 3072]
    assert all(each.scale == attention_factor() for each in ladder.sets)
    own = ladder_from_config(json.loads((made / "config.json").read_text()))
    assert json.loads((made / "generation_config.json").read_text())["max_new_tokens"] == stages.MAX_NEW_TOKENS
    assert own is not None
    assert [each.factors for each in own.sets] == [ladder.sets[0].factors, ladder.sets[-1].factors]
    assert [each.scale for each in own.sets] == [attention_factor(), attention_factor()]
    model = LlamaForCausalLM.from_pretrained(made)
    assert model.dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(made).encode("The")[0] == model.config.bos_token_id


@pytest.mark.full
def test_a_killed_run_goes_on_and_ends_alike(made: Path, tmp_path: Path) -> None:
    for seconds in (6, 9, 12):
        running = subprocess.Popen([*COMMAND, "--out", str(tmp_path / "model")], stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert make(tmp_path / "model").returncode == 0
    for name in ("config.json", "factors.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "model" / name).read_bytes() == (made / name).read_bytes(), name


@pytest.mark.full
def test_it_is_measured_with_every_set_and_switched(made: Path) -> None:
    results = made.with_name("results")
    done = make(made, "--measure", str(results))
    assert done.returncode == 0, done.stderr
    untuned = Results.read([results / UNTUNED])
    assert untuned.lengths("perplexity") == [4096]
    found = {row["set_name"] for row in untuned.rows}
    assert {"pi", "ntk", "yarn", "yarn-unscaled", "evolution-1", "random-1", "evolution-1-no-start"} <= found
    tuned = page.tuned(results, above=3 * 512)
    assert tuned.lengths("perplexity") == [512, 1024, 3072] and tuned.lengths("passkey") == [512, 1024, 3072 - 16]
    every = {"switched", "short", "long", "unrecovered", "pi", "ntk", "yarn", "pi-by-2", "x2"}
    assert {row["set_name"] for row in tuned.rows} == every
    # Switched is the recovered set below its end, and the longest above the others'.
    for length, name in ((512, "short"), (3072, "long")):
        assert tuned.losses(length, "switched") == tuned.losses(length, name)
    assert tuned.losses(1024, "switched") == tuned.losses(1024, "unrecovered") != tuned.losses(1024, "long")


def test_a_stopped_stage_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anchor.register()
    tokenizer = build_tokenizer(RATIO * WINDOW)
    whole = train.train(SMALL.base[0], lambda: fresh_model(tokenizer), tokenizer, tmp_path / "whole")
    step_loss, calls = train.step_loss, []

    def stop_at_fourth(*args: object) -> object:
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step_loss(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(train, "step_loss", stop_at_fourth)
    with pytest.raises(KeyboardInterrupt):
        train.train(SMALL.base[0], lambda: fresh_model(tokenizer), tokenizer, tmp_path / "stopped")
    resumed = train.train(SMALL.base[0], lambda: fresh_model(tokenizer), tokenizer, tmp_path / "stopped")
    assert len(calls) == 4 + 2
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_not_finite_stops_it(tmp_path: Path) -> None:
    anchor.register()
    tokenizer = build_tokenizer(RATIO * WINDOW)

    def broken() -> LlamaForCausalLM:
        model = fresh_model(tokenizer)
        with torch.no_grad():
            model.model.norm.weight.fill_(float("nan"))
        return model

    with pytest.raises(FloatingPointError, match="stage base, step 0: the loss is nan"):
        train.train(SMALL.base[0], broken, tokenizer, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_work_of_another_recipe_is_refused(tmp_path: Path) -> None:
    Run(SMALL, tmp_path)._check_work()
    Run(SMALL, tmp_path)._check_work()
    with pytest.raises(ValueError, match="belongs to a run of another recipe"):
        Run(FULL, tmp_path)._check_work()


def test_a_checkpoint_of_another_stage_is_refused(tmp_path: Path) -> None:
    anchor.register()
    tokenizer = build_tokenizer(RATIO * WINDOW)
    train.train(SMALL.base[0], lambda: fresh_model(tokenizer), tokenizer, tmp_path)
    with pytest.raises(ValueError, match="of another stage"):
        train.train(SMALL.tuning[0], lambda: fresh_model(tokenizer), tokenizer, tmp_path)


def test_a_full_disk_ends_it_with_one_line_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    work = tmp_path / "work"
    Run(SMALL, work)._check_work()
    monkeypatch.setattr(os, "fsync", no_room)
    monkeypatch.setattr(stages.Run, "_check_work", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["miniature", "--small", "--out", str(tmp_path / "out"), "--work", str(work)])
    assert main() == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("miniature: error: ") and last.endswith(
        "checkpoint.pt': cannot be written: No space left on device"
    )
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["recipe.json"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--threads", "0"], "--threads: 0 must be at least 1"),
        (["--window", "8"], "--window: 8 must be at least 256"),
        (["--window", "1024"], "--window: 1024 does not go with --small"),
        (["--work", "."], "--work: . holds --out"),
        (["--measure", "file"], "--measure: file is no folder"),
    ],
)
def test_flags_that_cannot_be_are_refused(
    flags: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr(sys, "argv", ["miniature", "--small", "--out", "out", *flags])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and expected in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_measurement_that_is_interrupted_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "factors_eval", lambda _: 130)
    group = experiments.Lengths("short", (512,), 0, 1)
    with pytest.raises(KeyboardInterrupt):
        experiments._evaluate(tmp_path, None, [], group, 1, tmp_path, tmp_path / "out.json")
