"""Token IDs whose range is known, and their stand-ins where checking each of a million would take too long."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ropeswitch.model_patches.serving.packed_prompt import packed


class TokenIds(list[int]):
    """Token IDs of a prompt, none below 0.

    Attributes:
        smallest: The smallest ID.
        largest: The largest ID.
        packed: The IDs as uint32, for the message to the engine; None once sent, or if an ID does not fit uint32.
    """

    __slots__ = ("largest", "packed", "smallest")

    def __init__(self, slices: Iterable[list[int]]) -> None:
        """Join non-empty slices; other threads can run between two of them."""
        super().__init__()
        ranges, pieces = [], []
        for each in slices:
            ranges += [min(each), max(each)]
            # A larger number is no model's token, and is refused before it is sent.
            fits = ranges[-2] >= 0 and ranges[-1] < 1 << 32
            pieces.append(np.array(each, np.uint32).tobytes() if fits else b"")
            self += each
        self.smallest, self.largest = min(ranges, default=0), max(ranges, default=0)
        self.packed: bytes | None = b"".join(pieces) if self.largest < 1 << 32 and self.smallest >= 0 else None


def pack(request: Any) -> None:
    """Make a request to the engine carry a long prompt as bytes, which neither side encodes or decodes number by number.

    vLLM's client encodes a request on the event loop, which takes 11 ms for a million token IDs, and the engine core decodes
    it in 28 ms (``model_patches/serving/packed_prompt.py``).

    Args:
        request: ``vllm.v1.engine.EngineCoreRequest``, already registered with the output processor.
    """
    ids = request.prompt_token_ids
    # Pooling requests have no sampling parameters.
    if isinstance(ids, TokenIds) and ids.packed is not None and request.sampling_params is not None:
        request.sampling_params, request.prompt_token_ids = packed(request.sampling_params, ids.packed), []
        # If a prompt has several answers, each is a request, and the others send the list.
        ids.packed = None


def sample(values: Any) -> list[Any] | None:
    """Return a short stand-in for the token IDs of one or several prompts, for the validation of a request.

    Returns:
        The first ID of each prompt that is :class:`TokenIds`, and other lists unchanged; None if no prompt is one.
    """
    if isinstance(values, TokenIds):
        return values[:1]
    if not isinstance(values, list) or not all(isinstance(each, list) for each in values):
        return None
    if any(isinstance(each, TokenIds) for each in values):
        return [each[:1] if isinstance(each, TokenIds) else each for each in values]
    return None


def completed(values: Any, validated: Any) -> Any:
    """Return the validated :func:`sample` with the token IDs that were kept out of it."""
    if isinstance(values, TokenIds):
        return values
    return [each if isinstance(each, TokenIds) else other for each, other in zip(values, validated, strict=True)]
