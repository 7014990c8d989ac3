"""Bytes per weight of the linear layers, from a config's ``quantization_config``."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.numbers import is_whole, whole_value
from ropeswitch.factors.quoted import quoted

BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class WeightFormat:
    """Storage of a decoder's linear layers; embeddings, norms, routers and the output head stay at 16 bits.

    ``bytes_per_weight`` includes the scales. GPUs with 8-bit tensor cores multiply ``is_fp8`` weights at their 8-bit peak.
    """

    name: str
    bytes_per_weight: Fraction
    is_fp8: bool = False


def weight_format(config: Any) -> WeightFormat:
    """Return the format described by a ``quantization_config``; a FactorError names the field, its value and what it may be.

    An fp8 weight takes one byte, plus a float32 scale per block if ``weight_block_size`` is set. An AWQ or GPTQ weight takes
    ``bits`` bits, plus a 16-bit scale and a zero point of ``bits`` bits per group.
    """
    if config is None:
        return WeightFormat("16-bit", Fraction(2))
    if not isinstance(config, Mapping):
        raise FactorError(f"quantization_config: {quoted(config)} must be a JSON object")
    method, name = config.get("quant_method"), "quantization_config."
    if method == "fp8":
        block = config.get("weight_block_size")
        if block is None:
            return WeightFormat("fp8", Fraction(1), is_fp8=True)
        if not isinstance(block, list) or len(block) != 2 or not all(is_whole(each, 1, 65536) for each in block):
            raise FactorError(f"{name}weight_block_size: {quoted(block)} must be two whole numbers from 1 to 65536")
        return WeightFormat("fp8", 1 + Fraction(4, block[0] * block[1]), is_fp8=True)
    if method not in ("awq", "gptq"):
        raise FactorError(f"{name}quant_method: {quoted(method)} is unsupported; allowed: fp8, awq, gptq")
    if not is_whole(bits := config.get("bits")) or bits not in BITS:
        raise FactorError(f"{name}bits: {quoted(bits)} must be one of {', '.join(map(str, BITS))}")
    # A group size of -1 means one group per row, whose scales are negligible.
    group = config.get("group_size")
    scale = 0 if group == -1 else Fraction(16 + bits, 8 * whole_value(f"{name}group_size", group, 8, 4096))
    return WeightFormat(f"{method} {bits}-bit", Fraction(bits, 8) + scale)
