"""Benchmarks against stock vLLM."""
