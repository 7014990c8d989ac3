"""The output of a start: vLLM's log held back, our own lines, progress. Knows no part of the server but files and lines."""
