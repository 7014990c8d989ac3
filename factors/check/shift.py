"""Measures position-shift differences D and D_logit: 'BFloat16 Breaks Down RoPE' (arXiv:2411.13476, equations 4 and 5).

With exact angles and arithmetic, adding the same shift to every position leaves attention unchanged. Let A be the
attention logits of a head at shifts a and b, and P their softmax over the causally visible keys:

- D sums ``|P_ij(a) - P_ij(b)|`` over layers and heads, with key j's column divided by its number of queries i >= j.
- D_logit sums ``|A_i0(a) - A_i0(b)|``, the first key's logits, over layers and heads, averaged over the queries i.

Logits include the model's scaling and are computed as in FlashAttention: products of queries and keys in the model's
dtype, accumulated in float32.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.local_model import LocalModel
from ropeswitch.factors.set_rotary import cos_sin
from ropeswitch.kernels.angles import Frequencies
from ropeswitch.kernels.parity_rows import ParityRows

# cos and sin of positions, float32 [n, pairs].
Rows = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Arithmetic:
    """How queries and keys are rotated.

    Attributes:
        name: Name in reports.
        dtype: The model's dtype.
        exact: If True, exact angles, rotated in float32 and rounded once, as on the server. If False, float32 angles, with
            cos and sin rounded to the model's dtype and rotated in it, as in Hugging Face.
    """

    name: str
    dtype: torch.dtype
    exact: bool


ARITHMETIC = (
    Arithmetic("float32", torch.float32, exact=True),
    Arithmetic("bfloat16, Hugging Face", torch.bfloat16, exact=False),
    Arithmetic("bfloat16, ours", torch.bfloat16, exact=True),
)


@dataclass(frozen=True)
class Shift:
    """Differences between two shifts, averaged over the sequences.

    Attributes:
        arithmetic: Name of the arithmetic.
        length: Sequence length in tokens.
        d: D of all tokens.
        d_first: The first key's part of D.
        d_logit: D_logit, which covers only the first key.
    """

    arithmetic: str
    length: int
    d: float
    d_first: float
    d_logit: float

    @property
    def d_others(self) -> float:
        """D without the first token."""
        return self.d - self.d_first


@torch.no_grad()
def shift_difference(
    local: LocalModel,
    factor_set: FactorSet,
    ids: torch.Tensor,
    arithmetic: Arithmetic,
    shifts: tuple[int, int] = (0, 16),
) -> Shift:
    """Measure D and D_logit of a model between two shifts of all positions.

    Args:
        local: The model; its weights must be in ``arithmetic.dtype``.
        factor_set: Set to rotate with; its ``start_tokens`` are ignored, since a shift moves tokens past them.
        ids: int64 ``[sequences, n]``.
        arithmetic: One of :data:`ARITHMETIC`.
        shifts: The two shifts; 0 and 16 in the paper.

    Raises:
        FactorError: when the model does not use transformers' attention table, or (checked in float32) does not rotate the
            first values of every layer's heads in NeoX layout.
    """
    if arithmetic.dtype is torch.float32:
        _check_rotation(local, factor_set, ids[:1], arithmetic)
    total = torch.zeros(3, dtype=torch.float64)
    for row in ids:
        plain = [_queries_and_keys(local, factor_set, row[None], arithmetic, shift) for shift in shifts]
        if not plain[0]:
            raise FactorError(
                f"{type(local.model).__name__} does not use scaled-dot-product attention, which --shift needs"
            )
        for here, there in zip(*plain, strict=True):
            total += _layer_difference(here, there)
    d, first, logit = (total / len(ids)).tolist()
    return Shift(arithmetic.name, ids.shape[1], d, first, logit)


def _check_rotation(local: LocalModel, factor_set: FactorSet, ids: torch.Tensor, arithmetic: Arithmetic) -> None:
    """Refuse a model that computes something else than is measured; D would not show a layer without rotation, say."""
    _, ours = _run(local, factor_set, ids, arithmetic, 0)
    theirs = local.hidden(ids, [replace(factor_set, start_tokens=0)])
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-3 * float(theirs.abs().max())):
        raise FactorError(f"{type(local.model).__name__} rotates its queries and keys in an unsupported way")


def _layer_difference(here: tuple[torch.Tensor, ...], there: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return D, the first key's part of D, and D_logit, summed over the heads of one layer."""
    total = torch.zeros(3, dtype=torch.float64)
    length = here[0].shape[1]
    columns = torch.arange(length, 0, -1, dtype=torch.float64)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    for query, key, query_there, key_there in zip(*here, *there, strict=True):
        logits = query.float() @ key.float().T
        logits_there = query_there.float() @ key_there.float().T
        weights, weights_there = (each.masked_fill(hidden, -torch.inf).softmax(-1) for each in (logits, logits_there))
        by_key = (weights - weights_there).abs().sum(0, dtype=torch.float64) / columns
        logit = (logits[:, 0] - logits_there[:, 0]).abs().mean(dtype=torch.float64)
        total += torch.stack((by_key.sum(), by_key[0], logit))
    return total


def _queries_and_keys(
    local: LocalModel, factor_set: FactorSet, ids: torch.Tensor, arithmetic: Arithmetic, shift: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return every layer's rotated queries, with logit scaling applied, and keys, each ``[heads, n, head_dim]``."""
    return _run(local, factor_set, ids, arithmetic, shift)[0]


def _run(
    local: LocalModel, factor_set: FactorSet, ids: torch.Tensor, arithmetic: Arithmetic, shift: int
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Return what :func:`_queries_and_keys` returns, and the last hidden states ``[1, n, hidden]``."""
    positions = torch.arange(ids.shape[1]) + shift
    cos, sin = _rows(local, factor_set, arithmetic)(positions)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **kwargs: Any) -> Any:
        query, key = (_rotate(each, cos, sin, arithmetic) for each in (query, key))
        found.append((query[0].float() * scaling, repeat_kv(key, query.shape[1] // key.shape[1])[0]))
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)

    base = local.model.base_model
    with _unrotated(base, local.rotary_dim), _attention(attend):
        hidden = base(input_ids=ids, use_cache=False).last_hidden_state
    return found, hidden


def _rows(local: LocalModel, factor_set: FactorSet, arithmetic: Arithmetic) -> Rows:
    if arithmetic.exact:
        plain = FactorSet(factor_set.name, factor_set.max_length, factor_set.factors, factor_set.scale)
        return lambda positions: cos_sin(local.theta, plain, positions)
    rows = ParityRows(local.theta, local.rotary_dim, (Frequencies(factor_set.factors, factor_set.scale),))

    def fill(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.empty(len(positions), local.rotary_dim)
        rows.fill(made, positions, torch.zeros_like(positions))
        cos, sin = made.chunk(2, dim=1)
        return cos, sin

    return fill


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, arithmetic: Arithmetic) -> torch.Tensor:
    """Rotate the first values of ``x``, ``[1, heads, n, head_dim]``, in NeoX layout (halves, not interleaved)."""
    pairs = cos.shape[1]
    dtype = torch.float32 if arithmetic.exact else x.dtype
    cos, sin, values = cos.to(dtype), sin.to(dtype), x.to(dtype)
    first, second, rest = values[..., :pairs], values[..., pairs : 2 * pairs], values[..., 2 * pairs :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1).to(x.dtype)


@contextmanager
def _unrotated(base_model: Any, rotary_dim: int) -> Iterator[None]:
    """Disable the model's rotation inside the block, so that queries and keys can be rotated in any arithmetic."""

    class Identity(torch.nn.Module):
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ones = torch.ones(1, position_ids.shape[-1], rotary_dim, dtype=x.dtype)
            return ones, torch.zeros_like(ones)

    own = base_model.rotary_emb
    base_model.rotary_emb = Identity()
    try:
        yield
    finally:
        base_model.rotary_emb = own


@contextmanager
def _attention(attend: Callable[..., Any]) -> Iterator[None]:
    """Route scaled-dot-product attention of all models through ``attend`` inside the block."""
    own = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = own
