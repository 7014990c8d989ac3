"""Metrics by length and set, of the scheduler and the queue. Knows placements and vLLM's statistics, no HTTP."""
