"""Reports of a load test: an HTML page of tables and plots, and a Markdown summary for a pull request."""
