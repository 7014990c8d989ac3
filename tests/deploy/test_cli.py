"""``ropeswitch plan``: what it prints and writes, and that wrong input ends with exit code 2 and one line."""

import json
from pathlib import Path

import pytest
import yaml

from ropeswitch.server.cli import main
from tests.deploy.configs import LLAMA2_7B, MISTRAL_7B, PHI4_MINI, Config

PHI = ["plan", "phi", "--gpu", "A100-80GB", "--gpus", "8"]
LLAMA = ["plan", "llama", "--gpu", "A100-80GB", "--gpus", "16", "--max-model-len", "2097152"]
MISTRAL = [
    "plan",
    "mistral",
    "--gpu",
    "A100-80GB",
    "--gpus",
    "16",
    "--gpus-per-node",
    "16",
    "--max-model-len",
    "2097152",
]
GPU_FILE = """
["Big one"]
memory_gib = 1000
bf16_tflops = 1
fp8_tflops = 0
memory_gb_per_s = 1.5
link_gb_per_s = 1
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, config in (("phi", PHI4_MINI), ("llama", LLAMA2_7B), ("mistral", MISTRAL_7B)):
        _write(tmp_path / name, config)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(folder: Path, config: Config) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def _plan(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    plan: dict[str, object] = json.loads(capsys.readouterr().out)
    return plan


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(LLAMA) == 0
    out = capsys.readouterr().out
    assert "KV      512 KiB per token at 16 bits; 1,024.00 GiB at 2,097,152 tokens" in out
    assert "lower bounds, not estimates" in out
    assert "DCP 2, 4, 8, 16: no KV head is replicated (TP 16 <= 32 KV heads)" in out
    assert "Sequence parallel (DCP) applies where TP exceeds the model's 32 KV heads" in out
    rows = [line.split()[:8] for line in out.splitlines()]
    assert ["8", "1", "2", "1", "0.78", "32", "64.00", "1"] in rows


def test_the_config_says_the_length(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(PHI, capsys)
    assert plan["max_model_len"] == 131072
    assert plan["recommended"]["tensor"] == 8  # type: ignore[index]
    assert "--factors" not in plan["command"]  # type: ignore[operator]


def test_config_json_and_gpu_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gpus.toml").write_text(GPU_FILE)
    plan = _plan(
        ["plan", "phi/config.json", "--gpu", "Big one", "--gpus", "1", "--gpu-file", "gpus.toml"],
        capsys,
    )
    # 0.9 x 1000 - 3 - 7.1 GiB hold 55 sequences of 16 GiB.
    assert plan["recommended"]["sequences"] == 55  # type: ignore[index]
    assert plan["command"][:2] == ["serve", "phi"]  # type: ignore[index]


def test_none_fits(capsys: pytest.CaptureFixture[str]) -> None:
    few = [*LLAMA[:5], "8", *LLAMA[6:]]
    assert main([*few, "--helm", "values.yaml"]) == 1
    captured = capsys.readouterr()
    assert "No layout of 8 x A100-80GB meets the target of 1 such sequences" in captured.out
    assert "128.00 GiB of KV needed" in captured.out
    assert not Path("values.yaml").exists()


def test_helm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MISTRAL, "--helm", "values.yaml", "--kv-cache-dtype", "fp8"]) == 0
    values = yaml.safe_load(Path("values.yaml").read_text(encoding="utf-8"))
    assert values == {
        "model": "mistral",
        "maxModelLen": 2097152,
        "maxNumSeqs": 256,
        "gpuMemoryUtilization": 0.9,
        "kvCacheDtype": "fp8",
        "parallelism": {
            "tensor": 16,
            "decodeContext": 2,
            "pipeline": 1,
            "nodes": 1,
            "gpusPerNode": 16,
            "dataParallelReplicas": 1,
        },
        "plan": {"kvHeads": 8, "queriesPerKvHead": 4, "kvCapacity": 17669824},
        "resources": {"limits": {"nvidia.com/gpu": 16}},
    }
    capsys.readouterr()
    assert main([*MISTRAL, "--helm", "-", "--kv-cache-dtype", "fp8"]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out) == values
    assert "Recommended: TP 16 DCP 2 PP 1" in captured.err


def test_helm_replaces_nothing_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("values.yaml").write_text("mine")
    assert main([*PHI, "--helm", "values.yaml"]) == 2
    assert Path("values.yaml").read_text() == "mine"
    assert main([*PHI, "--helm", "values.yaml", "--force"]) == 0
    assert yaml.safe_load(Path("values.yaml").read_text())["model"] == "phi"


def test_a_cached_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub import constants

    repo = tmp_path / "hub" / "models--me--phi"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots").mkdir()
    _write(repo / "snapshots" / "abc", PHI4_MINI)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    plan = _plan(["plan", "me/phi", *PHI[2:]], capsys)
    assert plan["command"][1] == "me/phi"  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["plan", "phi", "--gpu", "A1", "--gpus", "1"],
            "--gpu: 'A1' is unknown; allowed: A100-40GB, A100-80GB, H100",
        ),
        (["plan", "phi", "--gpu", "L4"], "the following arguments are required: --gpus"),
        ([*PHI, "--gpus", "0"], "--gpus: '0' must be a whole number from 1 to 1024"),
        ([*PHI, "--gpus", "-1"], "--gpus: '-1' must be a whole number from 1 to 1024"),
        ([*PHI, "--gpus", "9999"], "--gpus: '9999' must be a whole number from 1 to 1024"),
        ([*PHI, "--gpus-per-node", "x"], "--gpus-per-node: 'x' must be a whole number from 1 to 1024"),
        ([*PHI, "--target-concurrency", "0"], "--target-concurrency: '0' must be"),
        ([*PHI, "--gpu-memory-utilization", "1.1"], "--gpu-memory-utilization: '1.1' must be a number above 0 up to 1"),
        ([*PHI, "--gpu-memory-utilization", "nan"], "--gpu-memory-utilization: 'nan' must be"),
        ([*PHI, "--reserve-gib", "-2"], "--reserve-gib: '-2' must be a number from 0 up to 1024"),
        ([*PHI, "--kv-cache-dtype", "int3"], "invalid choice: 'int3'"),
        (
            [*PHI, "--max-model-len", "131073"],
            "--max-model-len: 131073 exceeds 131072, where the last factor set, 'long', ends",
        ),
        ([*PHI, "--max-model-len", "200k"], "--max-model-len: 200000 exceeds 131072"),
        ([*PHI, "--max-model-len", "long"], "--max-model-len: 'long' must be a number of tokens, such as 131072, 128k"),
        ([*PHI, "--max-model-len", "0"], "--max-model-len: '0' must be a whole number from 1 to"),
        ([*PHI, "--gpu-file", "none.toml"], "--gpu-file: 'none.toml' does not exist"),
        ([*PHI, "--factors", "none.json"], "factor file 'none.json': does not exist"),
        ([*PHI, "--helm", "no/such/folder/values.yaml"], "cannot be written: No such file or directory"),
        (["plan", "~no-user/m", *PHI[2:]], "MODEL: '~no-user/m': the home folder of '~no-user' is unknown"),
        (["plan", "./nowhere", *PHI[2:]], "MODEL: there is no folder './nowhere'"),
        (["plan", "nobody/nothing", *PHI[2:]], "has no config.json under that name; download it first"),
        (["plan", "a b?c", *PHI[2:]], "MODEL: there is no folder 'a b?c', and it is not a valid hub name"),
        (["plan", ".", *PHI[2:]], "MODEL: the folder '.' has no config.json"),
    ],
)
def test_wrong_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("ropeswitch: error: ") and captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "mamba", "rope_scaling": None},
            "model_type: 'mamba' is unsupported; allowed: llama, mistral, phi3",
        ),
        ({"kv_lora_rank": 512}, "kv_lora_rank: 512: the planner does not support latent attention"),
        ({"num_hidden_layers": None}, "num_hidden_layers: missing"),
        ({"vocab_size": "many"}, "vocab_size: 'many' must be a whole number from 1 to 2147483647"),
        ({"num_key_value_heads": 7}, "num_key_value_heads: 7 must divide num_attention_heads, 24"),
        ({"hidden_size": 3071}, "head_dim: missing, and hidden_size 3071 is not a multiple of num_attention_heads, 24"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "every layer must be 'full_attention'"),
        ({"sliding_window": 2047}, "sliding_window: 2047 is less than the 131072 tokens of --max-model-len"),
        ({"torch_dtype": "int8"}, "torch_dtype: 'int8' is unsupported; allowed: float16, bfloat16, float32"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: 1 must be true or false"),
        (
            {"quantization_config": {"quant_method": "x"}},
            "quantization_config.quant_method: 'x' is unsupported; allowed",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.bits: None must be one of 2, 3, 4, 8"),
        ({"architectures": "Phi"}, "architectures: must be a list of names"),
        ({"partial_rotary_factor": 0.5}, "each set has 48 factors, but the model rotates 64"),
    ],
)
def test_models_that_cannot_be_planned(change: Config, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    _write(Path("phi"), PHI4_MINI | change)
    assert main(PHI) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("ropeswitch: error: MODEL: 'phi/config.json'") and captured.err.count("\n") == 1
    assert message in captured.err


def test_sequences_against_the_node_s_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight ranks of an H100 pin 64 GiB for vLLM's 1,024 sequences of 2M tokens; each GPU has 1 GiB of block tables."""
    h100 = [*LLAMA[:3], "H100-80GB", *LLAMA[4:]]
    for gib, count, host in ((None, 1024, 64), ("66", 1024, 64), ("65", 512, 32)):
        plan = _plan([*h100, *(["--node-memory-gib", gib] if gib else [])], capsys)
        best: dict[str, object] = plan["recommended"]  # type: ignore[assignment]
        assert (best["max_num_seqs"], best["sequence_bytes_per_pod"]) == (count, host << 30)
        assert best["block_table_bytes_per_gpu"] == count << 20
        command: list[str] = plan["command"]  # type: ignore[assignment]
        assert command[command.index("--max-num-seqs") + 1] == str(count)
    assert main([*h100, "--node-memory-gib", "65"]) == 0
    out = capsys.readouterr().out
    assert "512 reserves 32.0 GiB of host memory per pod (node: 65.0 GiB), and 512 MiB per GPU for block" in out
    assert (
        "default does not fit: --max-num-seqs 1024 reserves 64.0 GiB of host memory, but a pod has 65.0 GiB.\n" in out
    )
    # Two pods share a node: each has half of its memory, less 2 GiB for processes.
    four = ["plan", "llama", "--gpu", "H100-80GB", "--gpus", "8", "--max-model-len", "65536", "--node-memory-gib"]
    plan = _plan([*four, "40"], capsys)
    for row in plan["layouts"]:  # type: ignore[attr-defined]
        pods = 8 // row["gpus_per_node"]
        assert row["sequence_bytes_per_pod"] <= (40 << 30) // pods - (2 << 30)
    assert main([*h100, "--node-memory-gib", "2"]) == 1
    assert (
        "does not fit: --max-num-seqs 1 reserves 64 MiB of host memory, but a pod has 2.0 GiB"
        in capsys.readouterr().out
    )
    assert main([*h100, "--gpu-memory-utilization", "1"]) == 1
    assert "the block tables of --max-num-seqs 1 take 1 MiB per GPU" in capsys.readouterr().out
    assert main([*h100, "--node-memory-gib", "0"]) == 2
    assert "--node-memory-gib: '0' must be a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "kib"),
    [
        # 4 bits and, for 128 weights, a scale of 16 bits and a zero of 4: 0.51953125 bytes.
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.51953125),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
    ],
)
def test_quantized_weights(config: Config, kib: float, capsys: pytest.CaptureFixture[str]) -> None:
    """The linear layers of LLaMA2-7B, 6,476,005,376 weights, shrink; embedding, head and norms stay 16 bits."""
    _write(Path("llama"), LLAMA2_7B | {"quantization_config": config})
    plan = _plan(["plan", "llama", "--gpu", "A100-80GB", "--gpus", "1"], capsys)
    linear = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    rest = 2 * 32000 * 4096 + 65 * 4096
    assert plan["recommended"]["weight_bytes_per_gpu"] == linear * kib + 2 * rest  # type: ignore[index]


def test_a_gguf_file_is_explained_as_serve_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(20))
    assert main(["plan", str(tmp_path / "model.gguf"), "--gpu", "A100-80GB", "--gpus", "8"]) == 2
    assert "GGUF files are not supported, so use the folder of the original weights" in capsys.readouterr().err


def test_a_config_that_serve_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rope = {"type": "linear", "rope_type": "yarn", "factor": 4.0}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rope_scaling": rope}))
    assert main(["plan", str(tmp_path), "--gpu", "A100-80GB", "--gpus", "8"]) == 2
    assert "rope_scaling.rope_type: 'yarn', but rope_scaling.type: 'linear'" in capsys.readouterr().err
