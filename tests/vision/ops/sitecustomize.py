"""On ``PYTHONPATH`` beside PyPI's torchvision: declares the compiled ops that a CUDA build does not bring to a CPU torch.

torchvision's modules only name them while they are imported; image processors use its transforms, which are Python.
"""

import torch

# ``torch.library`` keeps a definition for as long as its library lives.
_LIBRARY = torch.library.Library("torchvision", "DEF")
_LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
