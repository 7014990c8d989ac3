"""Declares torchvision's C++ operators, so that its Python code can be imported beside a CPU torch.

Its ordinary wheels are CUDA builds, whose library does not load there, and `import torchvision` then stops at the first
operator that it registers a shape function for. vLLM's multimodal models import it; text-only requests run none of it.
"""

import importlib.util
import re
from pathlib import Path

import torch

_NAMED = re.compile(r"(?:torchvision::|register_meta\(\"|torch\.ops\.torchvision\.)(\w+)")


def declare() -> bool:
    """Declare every operator that torchvision names; False where torchvision is not installed."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    folder = Path(spec.origin).parent
    names = {name for path in folder.glob("_*registrations.py") for name in _NAMED.findall(path.read_text())}
    library = torch.library.Library("torchvision", "DEF")
    for name in sorted(names):
        library.define(f"{name}(...) -> ...")
    _kept.append(library)
    return True


# A library's declarations end with it.
_kept: list[torch.library.Library] = []
