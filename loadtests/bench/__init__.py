"""Benchmarks: one file each, run with ``python -m``; ``make help`` lists them."""
