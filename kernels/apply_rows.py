"""Op 2: rotate queries and keys by the step's rows, in float32 with a single cast.

Only the first ``rotary_dim`` values of each head are rotated; the rest pass through (partial rotary). With ``neox``, value i
pairs with ``i + rotary_dim / 2`` (GPT-NeoX, Llama, Phi); otherwise ``2 i`` pairs with ``2 i + 1`` (interleaved, GPT-J).
:func:`ropeswitch.kernels.reference.apply_rows_reference` does the same in float64.
"""

import torch

# Values per block of the eager path; 1 MiB as float32.
BLOCK = 1 << 18
# Up to this many values the plain formula is faster: its temporaries fit in the cache, and it makes fewer calls.
FEW = 1 << 16


def apply_rows(
    rows: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None, head_size: int, neox: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate a step's queries and keys, token i by row i.

    Args:
        rows: ``[tokens, rotary_dim]`` float32, cosines then sines.
        query: ``[tokens, query heads * head_size]`` or ``[tokens, query heads, head_size]``, any float type.
        key: Like ``query``, with the key heads; or None.
        head_size: Values per head.
        neox: NeoX pairing if true, interleaved otherwise.

    Returns:
        New tensors with the shapes and dtypes of ``query`` and ``key``.
    """
    # A compiler fuses the plain formula into one pass. Without one, a CPU works in blocks that stay in its cache.
    plain = torch.compiler.is_compiling() or query.numel() <= FEW or not query.is_cpu
    rotate = _rotate if plain else _rotate_in_blocks
    cos, sin = rows.unsqueeze(1).chunk(2, dim=-1)
    return rotate(cos, sin, query, head_size, neox), None if key is None else rotate(cos, sin, key, head_size, neox)


def _rotate(cos: torch.Tensor, sin: torch.Tensor, values: torch.Tensor, head_size: int, neox: bool) -> torch.Tensor:
    heads = values.flatten(1).unflatten(1, (-1, head_size))
    rotary_dim = 2 * cos.shape[-1]
    first, second = _pairs(heads[..., :rotary_dim].float(), neox)
    left = torch.addcmul(first * cos, second, sin, value=-1).to(values.dtype)
    right = torch.addcmul(second * cos, first, sin).to(values.dtype)
    parts = [left, right] if neox else [torch.stack((left, right), dim=-1).flatten(-2)]
    if rotary_dim < head_size:
        parts.append(heads[..., rotary_dim:])
    return torch.cat(parts, dim=-1).view(values.shape)


def _rotate_in_blocks(
    cos: torch.Tensor, sin: torch.Tensor, values: torch.Tensor, head_size: int, neox: bool
) -> torch.Tensor:
    heads = values.flatten(1).unflatten(1, (-1, head_size))
    rotary_dim = 2 * cos.shape[-1]
    out = torch.empty(heads.shape, dtype=values.dtype, device=values.device)
    if rotary_dim < head_size:
        out[..., rotary_dim:] = heads[..., rotary_dim:]
    block = min(max(1, BLOCK // values[:1].numel()), len(heads))
    before = torch.empty(block, heads.shape[1], rotary_dim, dtype=torch.float32, device=values.device)
    after = torch.empty_like(before)
    every_cos = torch.cat((cos, cos), dim=-1) if neox else cos.repeat_interleave(2, dim=-1)
    for start in range(0, len(heads), block):
        tokens = slice(start, start + block)
        source, sines = heads[tokens, :, :rotary_dim], sin[tokens]
        first, second = _pairs(before[: len(source)].copy_(source), neox)
        left, right = _pairs(torch.mul(before[: len(source)], every_cos[tokens], out=after[: len(source)]), neox)
        left.addcmul_(second, sines, value=-1)
        right.addcmul_(first, sines)
        out[tokens, :, :rotary_dim] = after[: len(source)]
    return out.view(values.shape)


def _pairs(values: torch.Tensor, neox: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if neox:
        first, second = values.chunk(2, dim=-1)
        return first, second
    return values[..., ::2], values[..., 1::2]
