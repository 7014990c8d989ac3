"""Checks factor files: shape and angles unseen in training."""
