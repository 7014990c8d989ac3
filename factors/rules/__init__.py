"""Factor rules with a closed form: position interpolation, NTK, YaRN, theta scaling, LongRoPE2 and their variants."""
