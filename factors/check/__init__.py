"""Checks of factor files: base bound, precision, shape and angles never seen in training."""
