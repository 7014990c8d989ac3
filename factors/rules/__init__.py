"""Closed-form factor rules: position interpolation, NTK, YaRN, theta scaling, LongRoPE2 and their variants."""
