"""Load tests, benchmarks against stock vLLM, and the simulation of schedulers."""
