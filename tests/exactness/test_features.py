"""Features of the engine that meet a switch: structured output, LoRA, an fp8 KV cache."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

from tests.exactness import checkpoints
from tests.exactness.batches import Start
from tests.exactness.engines import first_choice, generate, greedy, prompts, run
from tests.exactness.reference import TIE, Reference, load_model
from tests.exactness.test_ladders import ladder
from tests.server.checkpoint import byte_tokenizer


def test_structured_output_spans_the_switch(start: Start, tmp_path: Path) -> None:
    folder = checkpoints.phi3(tmp_path, vocab_size=259)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    llm = start(folder, skip_tokenizer_init=False)
    reference = Reference.load(folder)
    params = greedy(30, structured_outputs=StructuredOutputsParams(regex="[a-h]{30}"), logprobs=0)
    allowed = tokenizer.convert_tokens_to_ids(list("abcdefgh"))
    token_lists = prompts([50, 60, 64, 20, 100], vocabulary=259)
    for prompt, (tokens, _) in zip(token_lists, run(llm, token_lists, params), strict=True):
        assert len(tokens) == 30
        sequence = list(prompt)
        for token in tokens:
            row = reference.log_probs(sequence)[-1][allowed]
            assert row.max() - row[allowed.index(token)] < TIE
            sequence.append(token)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="vLLM's kernels for adapters on GPUs take 16 bits; this compares in float32"
)
def test_lora(start: Start, tmp_path: Path) -> None:
    folder = checkpoints.llama(tmp_path / "model")
    sets = ladder(16, lengths=(64, 512))
    adapters = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        base = load_model(folder)
        config = LoraConfig(
            r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], init_lora_weights=False
        )
        get_peft_model(base, config).save_pretrained(tmp_path / f"adapter{seed}")
        adapters.append(LoRARequest(f"adapter{seed}", seed, str(tmp_path / f"adapter{seed}")))
    llm = start(folder, sets, enable_lora=True, max_loras=2, max_lora_rank=8)
    references: dict[str | None, Reference] = {None: Reference.load(folder, sets)}
    for request in adapters:
        base = load_model(folder)
        merged = PeftModel.from_pretrained(base, request.lora_path).merge_and_unload().eval()
        references[request.lora_name] = Reference(merged, sets)
    choice = [None, *adapters]
    token_lists = prompts([60, 60, 60, 64, 65, 20, 150, 62, 63])
    chosen = [choice[i % 3] for i in range(len(token_lists))]
    outputs = generate(llm, token_lists, greedy(16), lora_request=chosen)
    for prompt, request, output in zip(token_lists, chosen, outputs, strict=True):
        reference = references[request.lora_name if request else None]
        reference.check(prompt, *first_choice(output.outputs[0]))


@pytest.mark.skipif(
    not (torch.cuda.is_available() or torch.cpu._is_avx512_supported()),
    reason="vLLM has fp8 keys and values on GPUs, and on CPUs with AVX-512",
)
def test_fp8_kv_cache(start: Start, phi3: Path, phi3_reference: Reference) -> None:
    """fp8 rounds keys and values, so the answer is near the reference, not equal; but it is the same in any company.

    A request that crosses in a crowd says what it says alone, token for token, and each token is likely by the reference.
    """
    llm = start(phi3, kv_cache_dtype="fp8", enable_prefix_caching=False)
    token_lists = prompts([50, 60, 63, 64, 65, 150])
    together: list[Any] = run(llm, token_lists, greedy(16))
    for prompt, (tokens, log_probs) in zip(token_lists, together, strict=True):
        alone_tokens, _ = run(llm, [prompt], greedy(16))[0]
        assert alone_tokens == tokens
        sequence = list(prompt)
        errors = []
        for token, log_prob in zip(tokens, log_probs, strict=True):
            errors.append(abs(log_prob - float(phi3_reference.log_probs(sequence)[-1][token])))
            sequence.append(token)
        # Right angles with fp8 err by about 0.05 here; a wrong set after the switch errs by more than 1.
        assert sum(errors) / len(errors) < 0.4, errors


def test_a_seed_means_the_same_in_chunks(start: Start, phi3: Path) -> None:
    """A chunk of a prompt draws a token that no one wants; upstream cannot undo that on CPUs, and the engine died of it."""
    token_lists = prompts([150, 20, 200])
    seeded = [greedy(12, temperature=1.0, seed=seed) for seed in (7, 8, 9)]
    whole = run(start(phi3), token_lists, seeded)
    in_chunks = run(start(phi3, max_num_batched_tokens=48), token_lists, seeded)
    assert [tokens for tokens, _ in in_chunks] == [tokens for tokens, _ in whole]
