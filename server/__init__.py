"""The OpenAI-compatible server: rooms for the start, the app, the front, metrics and the status page."""
