"""Benchmarks, each run with ``python -m``, and their helpers; ``make help`` lists the commands."""
