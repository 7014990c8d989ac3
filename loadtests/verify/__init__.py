"""``ropeswitch verify``: checks over HTTP that a running server rotates each request with the set for its length."""
