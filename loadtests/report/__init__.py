"""Reports of a load test: an HTML page of tables and plots, and plain text."""
