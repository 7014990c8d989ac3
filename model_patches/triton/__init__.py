"""Rows and rotation as Triton kernels, on GPUs. Knows the kernels."""
