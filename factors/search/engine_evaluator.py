"""Evaluates candidates in batches with the patched vLLM. The only file under ``factors/`` that imports the engine."""

import os
from collections.abc import Sequence
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.search.model_facts import ModelFacts
from ropeswitch.factors.search.objective import Objective

# Candidates in the engine at once; each needs two small angle tables (kernels/angles.py).
SLOTS = 16
# Token budget of one engine step.
STEP_TOKENS = 8192
BLOCK = 128


class EngineEvaluator:
    """Evaluates with one in-process engine, whose factor sets are replaced before each batch.

    Each document is one request per candidate, and the request names its set. The prefix cache is off. The engine's steps
    depend only on the requests, so a batch always gives the same perplexities.

    Attributes:
        name: ``engine``.
        batch: Candidates to evaluate together.

    Raises:
        FactorError: when the engine does not start, or cannot rotate the model exactly.
    """

    name = "engine"
    batch = SLOTS

    def __init__(self, facts: ModelFacts, objective: Objective, dtype: str = "float32", parallel: int = 1) -> None:
        # Read when vLLM is imported. In a separate process, the engine would accept requests while it already steps, so the
        # composition of steps, and with it the last digits, would be random.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import LLM, SamplingParams
        from vllm.transformers_utils.config import get_config

        from ropeswitch.model_patches.switch.config.key import KEY, left_out
        from ropeswitch.model_patches.switch.config.settings import FORCED_SET, UnsupportedError
        from ropeswitch.model_patches.switch.parts import PARTS

        if (reason := left_out(os.environ)) is not None:
            raise FactorError(reason)
        self._objective = objective
        self._prompts = [{"prompt_token_ids": list(row)} for row in objective.rows]
        # Sets that start alike would share one row of angles, and each batch would overwrite it (ladders.py).
        distinct = [FactorSet("initial", objective.length, (1.0 + slot,) * facts.rope.pairs) for slot in range(SLOTS)]
        config = get_config(facts.name, trust_remote_code=False)
        ladder = self._ladder(distinct)
        key = {"sets": ladder.to_json(), "angles": "exact", "length_aware": False, "parts": list(PARTS)}
        together = max(1, STEP_TOKENS // objective.length) + 1
        arguments: dict[str, Any] = {
            "model": facts.name,
            "dtype": dtype,
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "async_scheduling": False,
            "block_size": BLOCK,
            "max_num_seqs": together,
            "max_num_batched_tokens": STEP_TOKENS,
            "max_model_len": objective.length + 1,
            "tensor_parallel_size": parallel,
            "kv_cache_memory_bytes": together * _cache_bytes(config, objective.length, dtype, parallel),
            "disable_log_stats": True,
            "seed": 0,
            "additional_config": {KEY: key},
        }
        try:
            self._llm = LLM(**arguments)
        except (FactorError, UnsupportedError) as error:
            raise FactorError(f"engine: model {facts.name!r}: {error}") from error
        except (ValueError, RuntimeError, OSError) as error:
            raise FactorError(f"engine: does not start: {' '.join(str(error).split())[:400]}") from error
        self._params = [
            SamplingParams(
                temperature=0.0,
                max_tokens=1,
                prompt_logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                extra_args={FORCED_SET: name},
            )
            for name in ladder.names
        ]

    def evaluate(self, sets: Sequence[FactorSet]) -> list[float]:
        """Return the objective's perplexity under each set, in order; takes at most :attr:`batch` sets."""
        for error in self._llm.collective_rpc("load_sets", args=(self._ladder(sets).to_json(),)):
            if error is not None:
                raise FactorError(f"engine: {error}")
        count = len(self._prompts)
        prompts = self._prompts * len(sets)
        params = [self._params[number // count] for number in range(len(prompts))]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        losses = [self._losses(output, self._objective.judged[n % count]) for n, output in enumerate(outputs)]
        return [self._objective.perplexity(losses[n : n + count]) for n in range(0, len(losses), count)]

    def close(self) -> None:
        """Stop the engine."""
        self._llm.llm_engine.engine_core.shutdown()

    def _losses(self, output: Any, judged: int) -> list[float]:
        found = output.prompt_logprobs.logprobs
        if len(found) != self._objective.length - 1:
            raise FactorError(f"engine: {len(found)} log-probabilities for a prompt of {self._objective.length} tokens")
        return [-value for value in found[len(found) - judged :]]

    def _ladder(self, sets: Sequence[FactorSet]) -> FactorLadder:
        """Return a ladder with one set per engine slot; the last set fills the unused slots. Requests name their set."""
        filled = [*sets, *[sets[-1]] * (SLOTS - len(sets))]
        slots = [
            FactorSet(f"candidate-{n}", self._objective.length + 1 + n, each.factors, each.scale, each.start_tokens)
            for n, each in enumerate(filled)
        ]
        return FactorLadder(tuple(slots))


def _cache_bytes(config: Any, length: int, dtype: str, parallel: int) -> int:
    """Return the bytes of keys and values that one GPU stores for one sequence, with a block to spare."""
    heads = max(1, (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) // parallel)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = 2 * config.num_hidden_layers * heads * head
    return values * (length + 2 * BLOCK) * (4 if dtype == "float32" else 2)
