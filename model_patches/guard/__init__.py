"""Compares vLLM with what the patches were written for, and reports the patches. Knows records, no behaviour."""
