"""``ropeswitch plan``: what it prints and writes, the ladder that it plans for, and one line for wrong input."""

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
from tests.deploy.configs import ALL, LLAMA2_7B, MISTRAL_7B, PHI4_MINI, QWEN3_8B, REFUSED, Config

PHI = ["plan", "phi", "--gpu", "A100-80GB", "--gpus", "8"]
LLAMA = ["plan", "llama", "--gpu", "A100-80GB", "--gpus", "16", "--max-model-len", "2097152"]
MISTRAL = ["plan", "mistral", *LLAMA[2:], "--gpus-per-node", "16"]
QWEN = ["plan", "qwen", *PHI[2:], "--max-model-len", "131072"]
MODELS = {"phi": PHI4_MINI, "llama": LLAMA2_7B, "mistral": MISTRAL_7B, "qwen": QWEN3_8B}
FIELDS = "memory_gib = 1000\nbf16_tflops = 1\nfp8_tflops = 0\nmemory_gb_per_s = 1.5\nlink_gb_per_s = 1\n"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_3 |= {"original_max_position_embeddings": 8192}
LLAMA_31 = LLAMA2_7B | {"max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": LLAMA_3}
UNKNOWN = MISTRAL_7B | {"max_position_embeddings": 131072, "rope_scaling": YARN}


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


def sets(found: dict[str, Any]) -> list[tuple[str, int, float | None]]:
    return [(each["name"], each["max_length"], each["factor"]) for each in found["ladder"]["sets"]]


def test_the_report_says_what_fits_and_what_is_only_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(LLAMA) == 0
    out = capsys.readouterr().out
    assert "KV      512 KiB per token at 16 bits; 1,024.00 GiB at 2,097,152 tokens" in out
    assert "lower bounds, not estimates" in out
    assert "DCP 2, 4, 8, 16: no KV head is replicated (TP 16 <= 32 KV heads)" in out
    assert ["8", "1", "2", "1", "0.78", "32", "64.00", "1"] in [line.split()[:8] for line in out.splitlines()]
    few = [*LLAMA[:5], "8", *LLAMA[6:], "--helm", "values.yaml"]
    assert main(few) == 1 and not Path("values.yaml").exists()
    out = capsys.readouterr().out
    assert "No layout of 8 x A100-80GB meets the target of 1 such sequences" in out and "128.00 GiB of KV needed" in out


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


@pytest.mark.parametrize(
    ("flags", "command", "values"),
    [
        ([], " serve qwen --max-model-len ", {}),
        (
            ["--ladder", "yarn:8x", "--native-window", "16k", "--ladder-policy", "reserve"],
            " --ladder yarn:8x --native-window 16384 --ladder-policy reserve ",
            {"ladder": "yarn:8x", "nativeWindow": 16384, "ladderPolicy": "reserve"},
        ),
        # The chart takes a factor file's content, not its path.
        (["--factors", "f.json"], " serve qwen --factors f.json --max-model-len 131072 ", {}),
        (["--ladder", "file:f.json"], " serve qwen --factors f.json --max-model-len 131072 ", {}),
    ],
)
def test_command_and_values_name_the_ladder_that_the_user_named(
    flags: list[str], command: str, values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QWEN, *flags, "--helm", "-"]) == 0
    captured = capsys.readouterr()
    made = yaml.safe_load(captured.out)
    names = ("ladder", "nativeWindow", "ladderPolicy", "factors")
    assert command in captured.err and {name: made[name] for name in names if name in made} == values


QWEN3_LADDER = [("original", 32768, 1.0), ("64k", 65536, 2.0), ("128k", 131072, 4.0)]
HALF_WINDOW = [("original", 16384, 1.0), ("32k", 32768, 2.0), ("64k", 65536, 4.0), ("128k", 131072, 8.0)]


@pytest.mark.parametrize(
    ("config", "flags", "expected"),
    [
        (QWEN3_8B, [], QWEN3_LADDER),
        (QWEN3_8B | {"rope_scaling": YARN}, [], QWEN3_LADDER),
        (QWEN3_8B, ["--ladder", "yarn:4x"], [QWEN3_LADDER[0], QWEN3_LADDER[2]]),
        (QWEN3_8B, ["--native-window", "16k"], HALF_WINDOW),
        (LLAMA_31, [], [("original", 131072, 8.0)]),
        (UNKNOWN, ["--ladder", "none"], [("static", 131072, 4.0)]),
        (UNKNOWN, ["--ladder", "yarn"], QWEN3_LADDER),
    ],
    ids=["automatic", "yarn of Qwen", "a rule", "a window", "llama3", "unknown, trained", "unknown, added"],
)
def test_the_config_and_the_flags_decide_the_ladder(
    config: Config, flags: list[str], expected: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write("qwen", config)
    found = plan([*QWEN, *flags], capsys)
    assert sets(found) == expected
    assert main([*QWEN, *flags]) == 0 and f"  {expected[-1][0]} " in capsys.readouterr().out


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


def test_without_a_length_the_ladder_is_that_of_the_printed_command(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan([*QWEN[:6]], capsys)
    assert sets(found) == [("original", 32768, 1.0), ("40k", 40960, 1.25)] and found["max_model_len"] == 40960
    served = choose(parse("auto"), as_transformers_reads(QWEN3_8B), 40960)
    assert [(each.name, each.max_length) for each in served.ladder.sets] == [("original", 32768), ("40k", 40960)]


@pytest.mark.parametrize(("command", "message"), REFUSED["commands"], ids=str)
def test_wrong_input_is_one_line_that_names_it(
    command: str | list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.gguf").write_bytes(b"GGUF" + bytes(20))
    words = command.split() if isinstance(command, str) else command
    known = {"PHI": PHI if words[0] == "PHI" else PHI[2:], "QWEN": QWEN}
    assert message in refusal([part for word in words for part in known.get(word, [word])], capsys)


@pytest.mark.parametrize(("change", "message"), REFUSED["configs"], ids=str)
def test_a_model_that_cannot_be_planned_is_one_line_that_names_the_field(
    change: Config, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("phi", PHI4_MINI | change)
    error = refusal(PHI, capsys)
    assert message in error and "MODEL: 'phi/config.json'" in error


def test_an_unknown_familys_scaling_is_refused_with_both_flags(capsys: pytest.CaptureFixture[str]) -> None:
    write("qwen", UNKNOWN)
    error = refusal(QWEN, capsys)
    assert "yarn x4" in error and "--ladder none" in error and "--ladder yarn" in error


def test_sequences_fit_the_hosts_and_the_gpus_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight ranks of an H100 pin 64 GiB for vLLM's 1,024 sequences of 2M tokens; each GPU has 1 GiB of block tables."""
    h100 = [*LLAMA[:3], "H100-80GB", *LLAMA[4:]]
    for gib, count, host in ((None, 1024, 64), ("66", 1024, 64), ("65", 512, 32)):
        found = plan([*h100, *(["--node-memory-gib", gib] if gib else [])], capsys)
        best, command = found["recommended"], found["command"]
        assert (best["max_num_seqs"], best["sequence_bytes_per_pod"]) == (count, host << 30)
        assert best["block_table_bytes_per_gpu"] == count << 20
        assert command[command.index("--max-num-seqs") + 1] == str(count)
    assert main([*h100, "--node-memory-gib", "65"]) == 0
    out = capsys.readouterr().out
    assert "512 reserves 32.0 GiB of host memory per pod (node: 65.0 GiB), and 512 MiB per GPU for block" in out
    assert (
        "default does not fit: --max-num-seqs 1024 reserves 64.0 GiB of host memory, but a pod has 65.0 GiB.\n" in out
    )
    # Two pods share a node: each has half of its memory, less 2 GiB for processes.
    four = ["plan", "llama", "--gpu", "H100-80GB", "--gpus", "8", "--max-model-len", "65536", "--node-memory-gib", "40"]
    for row in plan(four, capsys)["layouts"]:
        assert row["sequence_bytes_per_pod"] <= (40 << 30) // (8 // row["gpus_per_node"]) - (2 << 30)
    for flag, value, reason in (
        (
            "--node-memory-gib",
            "2",
            "does not fit: --max-num-seqs 1 reserves 64 MiB of host memory, but a pod has 2.0 GiB",
        ),
        ("--gpu-memory-utilization", "1", "the block tables of --max-num-seqs 1 take 1 MiB per GPU"),
    ):
        assert main([*h100, flag, value]) == 1 and reason in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "size"),
    [
        # 4 bits and, for 128 weights, a scale of 16 bits and a zero of 4: 0.51953125 bytes.
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.51953125),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
    ],
)
def test_quantized_linear_layers_shrink_and_the_rest_stays(
    config: Config, size: float, capsys: pytest.CaptureFixture[str]
) -> None:
    write("llama", LLAMA2_7B | {"quantization_config": config})
    found = plan(["plan", "llama", "--gpu", "A100-80GB", "--gpus", "1"], capsys)
    linear, rest = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 2 * 32000 * 4096 + 65 * 4096
    assert found["recommended"]["weight_bytes_per_gpu"] == linear * size + 2 * rest


@pytest.mark.parametrize(
    ("text", "message"), [*REFUSED["gpu_files"], ["a=" + "[" * 100_000, "g.toml' is "]], ids=lambda text: text[:40]
)
def test_a_wrong_gpu_file_is_one_line_that_names_the_fault(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("g.toml").write_text(text)
    assert message in refusal([*PHI, "--gpu-file", "g.toml"], capsys)
