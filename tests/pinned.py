"""Tests of what only the pinned vLLM has."""

import pytest

from ropeswitch.model_patches.switch.releases import compiled_ops

# Its own build, with its packages, and the architectures that docs/models.md measures.
pinned = pytest.mark.skipif(compiled_ops() is not None, reason="about the pinned vLLM and its packages")
