"""vLLM's app with ours: the endpoint plugin, the engine client, routes, the life cycle. Knows every other room."""
