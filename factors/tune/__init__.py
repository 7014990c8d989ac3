"""Chooses a ladder by measurement: on the user's texts, rung by rung, against the automatic ladder."""
