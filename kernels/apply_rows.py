"""Op 2: rotate queries and keys with the step's rows, in float32, cast once.

Only the first ``rotary_dim`` of each head's values turn; the rest pass through (partial rotary). ``neox`` pairs value i
with value ``i + rotary_dim / 2`` (GPT-NeoX, Llama, Phi), interleaved pairs ``2 i`` with ``2 i + 1`` (GPT-J).
"""

import torch


def apply_rows_reference(rows: torch.Tensor, values: torch.Tensor, head_size: int, neox: bool) -> torch.Tensor:
    """Rotate in float64, one pair of values at a time.

    Args:
        rows: ``[tokens, rotary_dim]`` cosines, then sines, of each token.
        values: ``[tokens, heads * head_size]`` queries or keys.
        head_size: Values per head.
        neox: How values pair up.

    Returns:
        ``[tokens, heads * head_size]`` float64.
    """
    pairs = rows.shape[1] // 2
    out = values.double().flatten(1).unflatten(1, (-1, head_size)).clone()
    source = out.clone()
    for i in range(pairs):
        first, second = (i, i + pairs) if neox else (2 * i, 2 * i + 1)
        cos, sin = rows[:, None, i].double(), rows[:, None, pairs + i].double()
        out[..., first] = source[..., first] * cos - source[..., second] * sin
        out[..., second] = source[..., second] * cos + source[..., first] * sin
    return out.reshape(values.shape)


def apply_rows(
    rows: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None, head_size: int, neox: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate a step's queries and keys; token i turns by row i.

    Args:
        rows: ``[tokens, rotary_dim]`` float32, cosines then sines.
        query: ``[tokens, query heads * head_size]`` or ``[tokens, query heads, head_size]``, any float type.
        key: As ``query`` with the key heads, or None.
        head_size: Values per head.
        neox: How values pair up.

    Returns:
        New tensors, shaped and typed as ``query`` and ``key``.
    """
    cos, sin = rows.unsqueeze(1).chunk(2, dim=-1)
    return _rotate(cos, sin, query, head_size, neox), None if key is None else _rotate(cos, sin, key, head_size, neox)


def _rotate(cos: torch.Tensor, sin: torch.Tensor, values: torch.Tensor, head_size: int, neox: bool) -> torch.Tensor:
    heads = values.flatten(1).unflatten(1, (-1, head_size))
    pairs = cos.shape[-1]
    turning = heads[..., : 2 * pairs].float()
    if neox:
        first, second = turning.chunk(2, dim=-1)
    else:
        first, second = turning[..., ::2], turning[..., 1::2]
    left = torch.addcmul(first * cos, second, sin, value=-1)
    right = torch.addcmul(second * cos, first, sin)
    if neox:
        parts = [left.to(values.dtype), right.to(values.dtype)]
    else:
        parts = [torch.stack((left, right), dim=-1).flatten(-2).to(values.dtype)]
    if 2 * pairs < head_size:
        parts.append(heads[..., 2 * pairs :])
    return torch.cat(parts, dim=-1).view(values.shape) if len(parts) > 1 else parts[0].view(values.shape)
