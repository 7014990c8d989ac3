"""How an engine is configured: the key, its settings and environment variables, and vLLM's arguments made from them."""
