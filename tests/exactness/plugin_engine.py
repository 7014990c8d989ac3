"""An engine of plain ``vllm.LLM`` in a process of its own: prints its tokens, classes and the modules of ours it loaded.

Run as ``python -m tests.exactness.plugin_engine FOLDER KEY PROMPTS FLAGS CASES``: KEY is JSON for
``additional_config["ropeswitch"]``, or null for an engine without it; PROMPTS a JSON list of lists of token IDs; FLAGS more
arguments of ``LLM``; CASES a JSON list of changes of ``SamplingParams``, each for one run of all prompts. The first request
is to be refused: with a key it asks for an unknown factor set, without one it is longer than the model's window.
"""

import json
import os
import sys
from typing import Any

from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError

from tests.gpu.settings import MEMORY_SHARE

ENGINE = {
    "dtype": "float32", "skip_tokenizer_init": True, "enforce_eager": True, "max_num_seqs": 16,
    "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 64 << 20, "gpu_memory_utilization": MEMORY_SHARE,
    "block_size": 32, "seed": 0,
}  # fmt: skip


def first_choice(output: Any) -> tuple[list[int], list[float]]:
    """The tokens of an answer and their log-probabilities."""
    tokens = list(output.token_ids)
    return tokens, [entry[token].logprob for token, entry in zip(tokens, output.logprobs, strict=True)]


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    folder, key, prompts = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    changes = {} if key is None else {"additional_config": {"ropeswitch": key}}
    llm = LLM(folder, **ENGINE, **changes, **json.loads(sys.argv[4]))
    refused = None
    unknown = None if key is None else {"rope_factor_set": "nope"}
    try:
        params = SamplingParams(max_tokens=1, detokenize=False, extra_args=unknown)
        llm.generate([{"prompt_token_ids": prompts[0] * (5 if key is None else 1)}], params, use_tqdm=False)
    except VLLMValidationError as error:
        refused = str(error)
    greedy = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "logprobs": 1, "detokenize": False}
    runs = []
    for case in json.loads(sys.argv[5]):
        params = SamplingParams(**{**greedy, **case})
        outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in prompts], params, use_tqdm=False)
        runs.append([output.outputs[0] for output in outputs])
    core = llm.llm_engine.engine_core.engine_core
    found = {
        "refused": refused,
        "outputs": [[first_choice(choice) for choice in choices] for choices in runs],
        "scheduler": f"{type(core.scheduler).__module__}.{type(core.scheduler).__qualname__}",
        "modules": sorted(name for name in sys.modules if name.startswith("ropeswitch.")),
    }
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main()
