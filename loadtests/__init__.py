"""Load tests, and benchmarks against stock vLLM."""
