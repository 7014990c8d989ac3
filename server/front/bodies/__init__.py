"""Request bodies: read, parsed and checked without blocking the event loop. Knows a request's context, no engine."""
