"""A start: the command line, the model's config, what fits the machine, refusals, the log. Knows flags, no request."""
