"""The verdicts, and the stages of a measurement that lead to them."""

EXACT, REFUSED, NOT_ON_CPU, DIFFERS, NO_CHECKPOINT = "exact", "refused", "not on CPU", "differs", "no checkpoint"
VERDICTS = (EXACT, REFUSED, DIFFERS, NOT_ON_CPU, NO_CHECKPOINT)

CHECKPOINT, STOCK, LADDER = "making the checkpoint", "stock vLLM", "with a ladder"
# What it means when a process ends by itself in a stage.
ENDED = {CHECKPOINT: NO_CHECKPOINT, STOCK: NOT_ON_CPU, LADDER: DIFFERS}
