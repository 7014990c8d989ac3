"""What people look at after a load test: one page of tables and plots, and a summary for a pull request."""
