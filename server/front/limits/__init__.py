"""Keys and limits of clients. Knows counts and tokens, no app."""
