"""What cannot be rotated per request, and is refused by a model's config."""
