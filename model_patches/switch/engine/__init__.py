"""The engine's processes: scheduler, workers, runners and model state, and the patches applied to them."""
