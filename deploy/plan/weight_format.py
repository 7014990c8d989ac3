"""Bytes per weight of the linear layers, from a config's ``quantization_config``."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import is_whole
from ropeswitch.factors.quoted import quoted

METHODS = ("fp8", "awq", "gptq")


@dataclass(frozen=True)
class WeightFormat:
    """Storage format of a decoder's linear layers; embeddings, norms, routers and the output head stay at 16 bits.

    Attributes:
        name: Name of the format.
        bytes_per_weight: Exact bytes of one weight with its share of the scales.
        is_fp8: Whether a GPU with 8-bit tensor cores multiplies at their 8-bit peak.
    """

    name: str
    bytes_per_weight: Fraction
    is_fp8: bool = False


SIXTEEN_BIT = WeightFormat("16-bit", Fraction(2))


def weight_format(config: Any) -> WeightFormat:
    """Return the format described by a ``quantization_config``.

    An fp8 weight takes one byte, plus a float32 scale per block if ``weight_block_size`` is set. An AWQ or GPTQ weight takes
    ``bits`` bits, plus a 16-bit scale and a zero point of ``bits`` bits per group.

    Raises:
        UsageError: naming the field, its value and what is allowed.
    """
    if config is None:
        return SIXTEEN_BIT
    if not isinstance(config, Mapping):
        raise UsageError(f"quantization_config: {quoted(config)} must be a JSON object")
    method = config.get("quant_method")
    if method == "fp8":
        block = config.get("weight_block_size")
        scale = Fraction(0) if block is None else Fraction(4, _block(block))
        return WeightFormat("fp8", 1 + scale, is_fp8=True)
    if method in ("awq", "gptq"):
        bits = _whole(config, "bits", (2, 3, 4, 8))
        # -1 means one group per row, whose scales are negligible.
        group = config.get("group_size")
        scales = Fraction(0) if group == -1 else Fraction(16 + bits, 8 * _whole(config, "group_size", range(8, 4097)))
        return WeightFormat(f"{method} {bits}-bit", Fraction(bits, 8) + scales)
    raise UsageError(
        f"quantization_config.quant_method: {quoted(method)} is unsupported; allowed: {', '.join(METHODS)}"
    )


def _whole(config: Mapping[str, Any], field: str, allowed: tuple[int, ...] | range) -> int:
    value = config.get(field)
    if not is_whole(value) or value not in allowed:
        names = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else ", ".join(map(str, allowed))
        raise UsageError(f"quantization_config.{field}: {quoted(value)} must be one of {names}")
    return value


def _block(block: Any) -> int:
    """Return the number of weights that share a scale."""
    ok = isinstance(block, list) and len(block) == 2 and all(is_whole(each, 1, 65536) for each in block)
    if not ok:
        raise UsageError(
            f"quantization_config.weight_block_size: {quoted(block)} must be two whole numbers from 1 to 65536"
        )
    return int(block[0] * block[1])
