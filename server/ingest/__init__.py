"""Reads, parses, checks and tokenizes long prompts without blocking the event loop."""
