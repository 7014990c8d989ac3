"""``ropeswitch plan`` plans for the ladder that ``ropeswitch serve`` makes, and says it in the command and the values."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoConfig

from ropeswitch.deploy.plan.model_config import find_ladder
from ropeswitch.factors.file import FORMAT
from ropeswitch.factors.ladders.choice import parse
from ropeswitch.factors.ladders.choose import choose
from ropeswitch.server.cli import main
from tests.deploy.configs import ALL, LLAMA2_7B, MISTRAL_7B, QWEN3_8B, Config

PLAN = ["plan", "model", "--gpu", "A100-80GB", "--gpus", "8"]
LONG = [*PLAN, "--max-model-len", "131072"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA_31 = LLAMA2_7B | {
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
UNKNOWN = MISTRAL_7B | {"max_position_embeddings": 131072, "rope_scaling": YARN}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)


def plan(arguments: list[str], config: Config, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    Path("model/config.json").write_text(json.dumps(config))
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(arguments: list[str], config: Config, capsys: pytest.CaptureFixture[str]) -> str:
    Path("model/config.json").write_text(json.dumps(config))
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("ropeswitch: error: ") and error.count("\n") == 1
    return error


def sets(found: dict[str, Any]) -> list[tuple[str, int, float | None]]:
    return [(each["name"], each["max_length"], each["factor"]) for each in found["ladder"]["sets"]]


QWEN3_LADDER = [("original", 32768, 1.0), ("64k", 65536, 2.0), ("128k", 131072, 4.0)]
HALF_WINDOW = [("original", 16384, 1.0), ("32k", 32768, 2.0), ("64k", 65536, 4.0), ("128k", 131072, 8.0)]


def test_a_plain_config_is_planned_with_its_automatic_ladder(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(LONG, QWEN3_8B, capsys)
    assert sets(found) == QWEN3_LADDER and found["ladder"]["name"] == "auto"
    assert [round(each["scale"], 5) for each in found["ladder"]["sets"]] == [1, 1.06931, 1.13863]
    assert found["ladder"]["sets"][0]["source"].endswith("https://huggingface.co/Qwen/Qwen3-8B")
    assert found["command"][:4] == ["serve", "model", "--max-model-len", "131072"]
    assert main(LONG) == 0
    assert "  128k      131,072  4       1.13863    yarn, factor 131,072 / 32,768\n" in capsys.readouterr().out


def test_without_a_length_a_plain_config_is_planned_to_its_maximum(capsys: pytest.CaptureFixture[str]) -> None:
    """With the ladder of the printed command, which names the length."""
    found = plan(PLAN, QWEN3_8B, capsys)
    assert sets(found) == [("original", 32768, 1.0), ("40k", 40960, 1.25)] and found["max_model_len"] == 40960
    served = choose(parse("auto"), as_transformers_reads(QWEN3_8B), 40960)
    assert [(each.name, each.max_length) for each in served.ladder.sets] == [("original", 32768), ("40k", 40960)]


@pytest.mark.parametrize(
    ("config", "flags", "expected"),
    [
        (QWEN3_8B | {"rope_scaling": YARN}, [], QWEN3_LADDER),
        (QWEN3_8B, ["--ladder", "yarn:4x"], [QWEN3_LADDER[0], QWEN3_LADDER[2]]),
        (QWEN3_8B, ["--native-window", "16k"], HALF_WINDOW),
        (LLAMA_31, [], [("original", 131072, 8.0)]),
        (UNKNOWN, ["--ladder", "none"], [("static", 131072, 4.0)]),
        (UNKNOWN, ["--ladder", "yarn"], QWEN3_LADDER),
    ],
    ids=["yarn of Qwen", "a rule", "a window", "llama3", "unknown, trained", "unknown, added"],
)
def test_the_config_and_the_flags_decide(
    config: Config, flags: list[str], expected: list[tuple[str, int, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sets(plan([*LONG, *flags], config, capsys)) == expected


def test_an_unknown_familys_scaling_is_refused_with_both_flags(capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(LONG, UNKNOWN, capsys)
    assert "yarn x4" in error and "--ladder none" in error and "--ladder yarn" in error


def as_transformers_reads(config: Config) -> dict[str, Any]:
    # It writes into what it is given.
    fields = copy.deepcopy({key: value for key, value in config.items() if key not in ("model_type", "torch_dtype")})
    read: dict[str, Any] = AutoConfig.for_model(config["model_type"], **fields).to_dict()
    return read


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("times", [None, 1, 4])
@pytest.mark.parametrize("left_out", [(), ("rope_theta",)], ids=["", "without a base"])
def test_the_ladder_is_the_one_that_is_served(name: str, times: int | None, left_out: tuple[str, ...]) -> None:
    """The server reads the config with transformers, which fills in what a ``config.json`` leaves out."""
    config = {key: value for key, value in ALL[name].items() if key not in left_out}
    reach = 1 if config.get("rope_scaling") else times
    length = None if times is None or reach is None else config["max_position_embeddings"] * reach
    planned = find_ladder("c", config, parse("auto"), length, None)
    assert planned == choose(parse("auto"), as_transformers_reads(config), length)


def factor_file(theta: float, length: int = 131072) -> str:
    listed = {"name": "all", "max_length": length, "factors": [1.0] * 64}
    Path("f.json").write_text(json.dumps({"format": FORMAT, "rope_theta": theta, "sets": [listed]}))
    return "f.json"


def test_the_values_name_what_the_user_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model/config.json").write_text(json.dumps(QWEN3_8B))

    assert main([*LONG, "--helm", "-"]) == 0
    captured = capsys.readouterr()
    assert " serve model --max-model-len " in captured.err
    assert not {"ladder", "nativeWindow", "ladderPolicy"} & set(yaml.safe_load(captured.out))
    assert (
        main([*LONG, "--ladder", "yarn:8x", "--native-window", "16k", "--ladder-policy", "reserve", "--helm", "-"]) == 0
    )
    captured = capsys.readouterr()
    assert " --ladder yarn:8x --native-window 16384 --ladder-policy reserve " in captured.err
    made = yaml.safe_load(captured.out)
    assert (made["ladder"], made["nativeWindow"], made["ladderPolicy"]) == ("yarn:8x", 16384, "reserve")


@pytest.mark.parametrize("flag", ["--factors", "--ladder"])
def test_a_factor_file_is_in_the_command_alone(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The chart takes its content, not its path."""
    Path("model/config.json").write_text(json.dumps(QWEN3_8B))
    path = factor_file(1000000.0)
    assert main([*LONG, flag, path if flag == "--factors" else f"file:{path}", "--helm", "-"]) == 0
    captured = capsys.readouterr()
    assert " serve model --factors f.json --max-model-len 131072 " in captured.err
    assert not {"ladder", "factors"} & set(yaml.safe_load(captured.out))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ladder", "yarn", "--factors", "f.json"], "--factors: 'f.json' and --ladder 'yarn' both name a ladder"),
        (["--ladder", "yarm"], "--ladder: 'yarm' is unknown; allowed: auto, none, file:PATH, or a rule"),
        (["--ladder", "yarn:64k,32k"], "--ladder: 'yarn:64k,32k': lengths must increase"),
        (["--ladder", "yarn:64k"], "--max-model-len: 131072 exceeds 65536, where --ladder yarn:64k ends"),
        (["--ladder", "none"], "--max-model-len: 131072 exceeds 40960, where the model's config ends"),
        (["--native-window", "64k"], "--native-window: 65536 exceeds 40960, the window in the model's config"),
        (["--native-window", "many"], "--native-window: 'many' must be a whole number of tokens"),
        (["--ladder-policy", "longest"], "argument --ladder-policy: invalid choice: 'longest'"),
        (["--factors", "f.json"], "rope_theta: factor file 'f.json' was made for 5.0, but the model's rope_theta is"),
        (["--factors", "short.json"], "--max-model-len: 131072 exceeds 65536, where the last factor set, 'all', ends"),
    ],
)
def test_wrong_flags(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(factor_file(1000000.0, 65536)).rename("short.json")
    factor_file(5.0)
    assert message in refusal([*LONG, *flags], QWEN3_8B, capsys)
