"""``ropeswitch plan``: what it prints and writes, the ladder that it plans for, and one line for wrong input."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoConfig

from ropeswitch.deploy.plan.layouts import Layout, broken_rule
from ropeswitch.deploy.plan.model_config import find_ladder
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.factors.file import FORMAT
from ropeswitch.factors.ladders.choice import parse
from ropeswitch.factors.ladders.choose import choose
from ropeswitch.server.cli import main
from tests.deploy.chart.helm import contains, read
from tests.deploy.configs import ALL, LLAMA2_7B, MISTRAL_7B, PHI4_MINI, QWEN3_8B, QWEN3_30B_A3B, REFUSED, Config

PHI = ["plan", "phi", "--gpu", "A100-80GB", "--gpus", "8"]
LLAMA = ["plan", "llama", "--gpu", "A100-80GB", "--gpus", "16", "--max-model-len", "2097152"]
MISTRAL = ["plan", "mistral", *LLAMA[2:], "--gpus-per-node", "16"]
QWEN = ["plan", "qwen", *PHI[2:], "--max-model-len", "131072"]
MODELS = {"phi": PHI4_MINI, "llama": LLAMA2_7B, "mistral": MISTRAL_7B, "qwen": QWEN3_8B}
MODELS["moe"] = QWEN3_30B_A3B
FIELDS = "memory_gib = 1000\nbf16_tflops = 1\nfp8_tflops = 0\nmemory_gb_per_s = 1.5\nlink_gb_per_s = 1\n"
EXPECTED: list[dict[str, Any]] = read(Path(__file__).with_name("plan_expected.yaml"))
COMMANDS = {"PHI": PHI, "LLAMA": LLAMA, "MISTRAL": MISTRAL, "QWEN": QWEN}


def write(name: str, config: Any) -> None:
    Path(name).mkdir(exist_ok=True)
    Path(name, "config.json").write_text(json.dumps(config))


def factor_file(name: str, theta: float, length: int) -> None:
    listed = {"name": "all", "max_length": length, "factors": [1.0] * 64}
    Path(name).write_text(json.dumps({"format": FORMAT, "rope_theta": theta, "sets": [listed]}))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, config in MODELS.items():
        write(name, config)
    factor_file("f.json", 1000000.0, 131072)
    factor_file("short.json", 1000000.0, 65536)
    factor_file("other.json", 5.0, 131072)


def plan(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("ropeswitch: error: ") and error.count("\n") == 1
    return error


def words(command: str | list[str]) -> list[str]:
    """Return the arguments of a command of the tables."""
    first, *rest = command.split() if isinstance(command, str) else command
    start = COMMANDS.get(first, [first])
    return [*start, *(part for word in rest for part in (PHI[2:] if word == "PHI" else [word]))]


@pytest.mark.parametrize("each", EXPECTED, ids=lambda each: each["lost"])
def test_without_it_a_user_loses(each: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = words(each["command"])
    write(arguments[1], MODELS[arguments[1]] | each.get("config", {}))
    assert main(arguments) == each.get("code", 0) and not Path("none.yaml").exists()
    captured = capsys.readouterr()
    for text in each.get("text", ()):
        assert text in captured.out + captured.err
    if "has" in each:
        assert contains(found := plan(arguments, capsys), each["has"]), found
    if "values" in each:
        assert main([*arguments, "--helm", "-"]) == 0
        assert contains(made := yaml.safe_load(capsys.readouterr().out), each["values"]), made


def test_the_model_may_be_a_folder_a_config_or_a_cached_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    found = plan(PHI, capsys)
    assert found["max_model_len"] == 131072 and found["recommended"]["tensor"] == 8
    Path("gpus.toml").write_text(f'["Big one"]\n{FIELDS}')
    big = plan(["plan", "phi/config.json", "--gpu", "Big one", "--gpus", "1", "--gpu-file", "gpus.toml"], capsys)
    # 0.9 x 1000 - 3 - 7.1 GiB hold 55 sequences of 16 GiB.
    assert big["recommended"]["sequences"] == 55 and big["command"][:2] == ["serve", "phi"]
    snapshot = tmp_path / "hub" / "models--me--phi" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(PHI4_MINI))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert plan(["plan", "me/phi", *PHI[2:]], capsys)["command"][1] == "me/phi"


def test_values_for_the_chart_are_written_once_and_replaced_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    fp8 = [*MISTRAL, "--kv-cache-dtype", "fp8", "--helm"]
    assert main([*fp8, "values.yaml"]) == 0
    values = yaml.safe_load(Path("values.yaml").read_text(encoding="utf-8"))
    sizes = {"tensor": 16, "decodeContext": 2, "pipeline": 1, "nodes": 1, "gpusPerNode": 16, "dataParallelReplicas": 1}
    assert values == {
        **{"model": "mistral", "maxModelLen": 2097152, "maxNumSeqs": 256, "gpuMemoryUtilization": 0.9},
        **{"kvCacheDtype": "fp8", "parallelism": sizes, "resources": {"limits": {"nvidia.com/gpu": 16}}},
        "plan": {"kvHeads": 8, "queriesPerKvHead": 4, "kvCapacity": 17669824},
    }
    capsys.readouterr()
    assert main([*fp8, "-"]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out) == values and "Recommended: TP 16 DCP 2 PP 1" in captured.err
    Path("values.yaml").write_text("mine")
    assert main([*PHI, "--helm", "values.yaml"]) == 2 and Path("values.yaml").read_text() == "mine"
    assert main([*PHI, "--helm", "values.yaml", "--force"]) == 0
    assert yaml.safe_load(Path("values.yaml").read_text())["model"] == "phi"


def as_transformers_reads(config: Config) -> dict[str, Any]:
    # It writes into what it is given.
    fields = copy.deepcopy({key: value for key, value in config.items() if key not in ("model_type", "torch_dtype")})
    read: dict[str, Any] = AutoConfig.for_model(config["model_type"], **fields).to_dict()
    return read


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("times", [None, 4])
@pytest.mark.parametrize("left_out", [(), ("rope_theta",)], ids=["", "without a base"])
def test_the_ladder_is_the_one_that_is_served(name: str, times: int | None, left_out: tuple[str, ...]) -> None:
    """The server reads the config with transformers, which fills in what a ``config.json`` leaves out."""
    config = {key: value for key, value in ALL[name].items() if key not in left_out}
    reach = 1 if config.get("rope_scaling") else times
    length = None if times is None or reach is None else config["max_position_embeddings"] * reach
    assert find_ladder("c", config, parse("auto"), length, None) == choose(
        parse("auto"), as_transformers_reads(config), length
    )


@pytest.mark.parametrize(("command", "message"), REFUSED["commands"], ids=str)
def test_wrong_input_is_one_line_that_names_it(
    command: str | list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.gguf").write_bytes(b"GGUF" + bytes(20))
    assert message in refusal(words(command), capsys)


@pytest.mark.parametrize(("change", "message"), REFUSED["configs"], ids=str)
def test_a_model_that_cannot_be_planned_is_one_line_that_names_the_field(
    change: Config, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("phi", PHI4_MINI | change)
    error = refusal(PHI, capsys)
    assert message in error and "MODEL: 'phi/config.json'" in error


@pytest.mark.parametrize(
    ("text", "message"), [*REFUSED["gpu_files"], ["a=" + "[" * 100_000, "g.toml' is "]], ids=lambda text: text[:40]
)
def test_a_wrong_gpu_file_is_one_line_that_names_the_fault(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("g.toml").write_text(text)
    assert message in refusal([*PHI, "--gpu-file", "g.toml"], capsys)


@pytest.mark.parametrize(("name", "change", "layout", "rule"), REFUSED["layouts"])
def test_a_rejected_layout_names_the_rule_and_its_numbers(
    name: str, change: Config, layout: list[int], rule: str | None
) -> None:
    found = broken_rule(shape_from_config("c", ALL[name] | change), Layout(*layout))
    assert (found is None) if rule is None else (found or "").startswith(rule)
