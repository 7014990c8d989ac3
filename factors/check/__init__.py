"""Checks factor files: base bound, shape and angles unseen in training."""
