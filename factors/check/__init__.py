"""Checks factor files: base bound, precision, shape and angles unseen in training."""
