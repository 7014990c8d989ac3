"""``ropeswitch verify``: whether a running server rotates each request with the set for its length, told over HTTP alone."""
