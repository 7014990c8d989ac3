"""``ropeswitch loadtest``: drives an OpenAI-compatible server with a workload, checks its answers and reports by length."""
