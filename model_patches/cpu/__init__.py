"""What vLLM's CPU backend lacks: sequence parallelism, stages, fixes. Knows the switch's workers."""
