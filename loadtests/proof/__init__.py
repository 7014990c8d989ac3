"""Measures what static YaRN costs a real model and ropeswitch does not: ``make docs-proof`` prints its tables."""
