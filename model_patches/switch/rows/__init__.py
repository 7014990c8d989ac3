"""What a model rotates with: one row of cosines and sines per token of a step, and the modules that read them.

Knows factor sets and positions, not requests.
"""
