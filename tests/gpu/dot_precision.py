"""Prints how Triton multiplies float32 for a GPU of the compute capability given, by its assembly: ``tf32`` or ``ieee``."""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def multiply(left, right, product):
    place = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(product + place, tl.dot(tl.load(left + place), tl.load(right + place)))


if __name__ == "__main__":
    source = ASTSource(multiply, {"left": "*fp32", "right": "*fp32", "product": "*fp32"})
    compiled = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32))
    print("tf32" if ".tf32" in compiled.asm["ptx"] else "ieee")
