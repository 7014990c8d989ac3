"""One JSON line for each request. Knows a request's context."""
