"""Ladders made from a model's config: its native rotation first, then a set for each longer length by a rule."""
