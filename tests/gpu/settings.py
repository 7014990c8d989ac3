"""What every test sets so that it is right on a GPU too; a machine without one ignores it."""

# Triton multiplies float32 in TF32 by default, 3e-4 off in a log-probability of which the tests allow 1e-3.
VARIABLES = {"TRITON_F32_DEFAULT": "ieee"}
# The share of a GPU's memory that an engine of the tests may take. It starts only where that much is free.
MEMORY_SHARE = 0.05
