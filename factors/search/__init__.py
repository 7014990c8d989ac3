"""LongRoPE's evolutionary search for factors, and progressive extension by searches and fine-tuning."""
