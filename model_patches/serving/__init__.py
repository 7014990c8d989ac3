"""The engine's side of ``ropeswitch serve``: progress of prefills. Knows vLLM's scheduler."""
