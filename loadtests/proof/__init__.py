"""Measures what static YaRN costs a real model and ropeswitch does not: docs/proof.md, made by ``make docs-proof``."""
