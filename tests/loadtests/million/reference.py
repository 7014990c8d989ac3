"""What is right: Hugging Face's Phi-3 in float64, for sequences over which no ordinary forward goes.

In a model of one layer a token's key and value come of its embedding and its position alone. So Hugging Face's modules run
over chunks of the sequence, each with an empty cache and its true positions, and the chunks' keys and values together are
the cache that the last tokens attend to. Two things are not Hugging Face's code: the angles, which it forms in float32 (at a
million tokens they are off by a tenth), are formed in float64 from the config's lists; and which list is said by the caller,
as Hugging Face knows the length of a chunk only.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CHUNK = 2000


class LongReference:
    """A model of one layer, and the keys and values of one prompt under each factor list."""

    def __init__(self, folder: Path, prompt: list[int]) -> None:
        load = AutoModelForCausalLM.from_pretrained
        self._model = load(folder, dtype=torch.float64, attn_implementation="sdpa").eval()
        self._config = self._model.config
        if self._config.num_hidden_layers != 1:
            raise ValueError(
                f"num_hidden_layers: {self._config.num_hidden_layers}, keys need no other tokens with 1 only"
            )
        self._prompt = prompt
        self._caches: dict[str, DynamicCache] = {}

    def list_for(self, length: int) -> str:
        """The list that Hugging Face's rule takes for a sequence of so many tokens: ``short`` or ``long``."""
        limit = self._config.rope_parameters["original_max_position_embeddings"]
        return "long" if length > limit else "short"

    @torch.no_grad()
    def log_probs(self, answer: list[int], first: int, name: str) -> torch.Tensor:
        """Log-probabilities of the tokens of an answer to the prompt, with one list for all positions.

        Returns:
            ``[len(answer) - first, vocabulary]``, float64: what the sequence before each of these tokens says of it.
        """
        cache = self._cache(name)
        kept = cache.get_seq_length()
        # The cache ends before the prompt's last token, which says what the first one of the answer is.
        tokens = self._prompt[kept:] + answer[:-1]
        with self._angles(name):
            logits = self._forward(tokens, kept, cache)
        cache.crop(-len(tokens))
        return logits[len(tokens) - (len(answer) - first) :].log_softmax(-1)

    def _cache(self, name: str) -> DynamicCache:
        if name not in self._caches:
            before = self._prompt[:-1]
            keys, values = [], []
            with self._angles(name):
                for start in range(0, len(before), CHUNK):
                    chunk = DynamicCache(config=self._config)
                    self._forward(before[start : start + CHUNK], start, chunk)
                    keys.append(chunk.layers[0].keys)
                    values.append(chunk.layers[0].values)
            whole = DynamicCache(config=self._config)
            whole.update(torch.cat(keys, dim=2), torch.cat(values, dim=2), 0)
            self._caches[name] = whole
        return self._caches[name]

    def _forward(self, tokens: list[int], start: int, cache: DynamicCache) -> torch.Tensor:
        positions = torch.arange(start, start + len(tokens))[None]
        ids = torch.tensor([tokens])
        logits: torch.Tensor = self._model(ids, position_ids=positions, past_key_values=cache, use_cache=True).logits
        return logits[0]

    def _angles(self, name: str) -> "Angles":
        return Angles(self._model, name)


class Angles:
    """Has a model's rotary module form its angles in float64, from one of the config's lists, while it is active."""

    def __init__(self, model: torch.nn.Module, name: str) -> None:
        self._rotary = model.get_submodule("model.rotary_emb")
        config = self._rotary.config
        rope = config.rope_parameters
        factors = torch.tensor(rope[f"{name}_factor"], dtype=torch.float64)
        exponents = torch.arange(len(factors), dtype=torch.float64) / len(factors)
        self._frequencies = 1.0 / (factors * rope["rope_theta"] ** exponents)
        # Hugging Face's own scale of cos and sin.
        _, self._scale = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"))
        self._original = self._rotary.forward

    def __enter__(self) -> None:
        self._rotary.forward = self._forward

    def __exit__(self, *_: object) -> None:
        self._rotary.forward = self._original

    def _forward(self, values: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[:, :, None].double() * self._frequencies
        both = torch.cat((angles, angles), dim=-1)
        return (both.cos() * self._scale).to(values.dtype), (both.sin() * self._scale).to(values.dtype)
