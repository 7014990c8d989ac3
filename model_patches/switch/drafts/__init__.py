"""Draft models of speculative decoding: their rotary modules and the sets of their requests."""
