"""Compares factor sets by perplexity and pass keys: one core for local models and servers."""
