"""Makes ladders from a model's config: the native rotation first, then a set for each longer length by a rule."""
