"""Benchmarks, each run with ``python -m``, and their helpers; ``make help`` lists the targets that run them."""
