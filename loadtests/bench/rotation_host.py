"""Times the host's work to rotate one layer's queries and keys, not compiled or captured: ours against stock's custom op.

Needs gcc but no GPU: Triton compiles for an H100 and launches through its own launcher, on a stub CUDA driver whose calls
return at once. Stock's op is the CPU build's on one token of small heads; its arithmetic counts against stock.
"""

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
from triton.runtime.driver import driver
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from ropeswitch.kernels import apply_rows_triton
from ropeswitch.kernels.triton_launch import check
from ropeswitch.model_patches.switch.rotary import LadderRotaryEmbedding
from ropeswitch.model_patches.switch.rotation import Rotation
from ropeswitch.model_patches.triton import kernels

HEADS, KEY_HEADS, HEAD_SIZE, MOST = 4, 2, 32, 64
# A stub driver: every call succeeds, and queries describe a device with ample resources.
CUDA_DRIVER = """
#define OK(name) int name(void) { return 0; }
OK(cuInit) OK(cuCtxSetCurrent) OK(cuCtxSetLimit) OK(cuCtxGetLimit) OK(cuFuncSetAttribute) OK(cuFuncSetCacheConfig)
OK(cuModuleUnload) OK(cuStreamIsCapturing) OK(cuTensorMapEncodeTiled) OK(cuTensorMapEncodeIm2col)
OK(cuOccupancyMaxActiveClusters) OK(cuGetErrorString) OK(cuLaunchKernelEx) OK(cuPointerGetAttributes)
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuDeviceGet(int *device) { *device = 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context) { *context = (void *)1; return 0; }
int cuDeviceGetAttribute(int *value) { *value = 1 << 17; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuFuncGetAttribute(int *value) { *value = 1024; return 0; }
int cuModuleGetFunction(void **function) { *function = (void *)1; return 0; }
int cuModuleLoadData(void **module) { *module = (void *)1; return 0; }
int cuPointerGetAttribute(void **value, int attribute, void *pointer) { *value = pointer; return 0; }
"""
Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


class NoGPU(CudaDriver):
    """A Triton driver for an H100 that runs nothing."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = CudaUtils(), CudaLauncher
        self.get_current_stream = self.get_current_device = lambda *_: 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def without_a_gpu(folder: Path) -> None:
    """Make Triton launch on the stub driver, and let our op accept CPU tensors."""
    (folder / "driver.c").write_text(CUDA_DRIVER)
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-O2", "-w", f"-Wl,-soname,{library.name}"]
    subprocess.run(["gcc", *flags, "-o", library, folder / "driver.c"], check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    knobs.nvidia.libcuda_path = str(folder)
    driver.set_active(NoGPU())
    apply_rows_triton.check = lambda kernel, *rest: check(None, *rest)  # type: ignore[attr-defined]


def layers() -> dict[str, Layer]:
    """Return every way to rotate a layer, by name."""
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        stock = RotaryEmbedding(HEAD_SIZE, HEAD_SIZE, MOST, 1e4, True, torch.bfloat16)
    stock._forward_method = stock.forward_cuda
    ours = LadderRotaryEmbedding(HEAD_SIZE, Rotation(1e4, HEAD_SIZE), True)
    ours.rows, ours.rotate = torch.zeros(MOST, HEAD_SIZE), kernels.rotate
    rows, table = ours.rows, stock.cos_sin_cache

    def ours_through_triton(numbers: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> None:
        apply_rows_triton._launch_checked(query, key, query, key, rows, numbers, HEAD_SIZE, True)

    return {
        "stock's module": stock,
        "ours, module": ours,
        "ours, checked and launched by Triton": ours_through_triton,
        "stock's op alone": lambda numbers, query, key: torch.ops._C.rotary_embedding(
            numbers, query, key, HEAD_SIZE, table, True
        ),
        "ours, op of compiled code alone": lambda numbers, query, key: torch.ops.ropeswitch.apply_rows.default(
            query, key, rows, numbers, HEAD_SIZE, True
        ),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rotation_host", description=__doc__)
    parser.add_argument("--rounds", type=int, default=31, help="alternations (default: %(default)s)")
    parser.add_argument(
        "--calls", type=int, default=2000, help="calls per row of the table and round (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        without_a_gpu(Path(folder))
        ways = layers()
        projection = torch.zeros(1, (HEADS + 2 * KEY_HEADS) * HEAD_SIZE, dtype=torch.bfloat16)
        query, key, _ = projection.split([HEADS * HEAD_SIZE, KEY_HEADS * HEAD_SIZE, KEY_HEADS * HEAD_SIZE], dim=-1)
        numbers = torch.arange(MOST)[:1]
        found: dict[str, list[float]] = {name: [] for name in ways}
        for round_ in range(args.rounds + 1):
            for name, layer in ways.items():
                start = thread_time()
                for _ in range(args.calls):
                    layer(numbers, query, key)
                if round_:
                    found[name].append(1e6 * (thread_time() - start) / args.calls)
        base = found["stock's module"]
        print("| layer | CPU us per call | / stock's module |\n| --- | --- | --- |")
        for name, times in found.items():
            ratio = statistics.median(ours / stock for ours, stock in zip(times, base, strict=True))
            print(f"| {name} | {statistics.median(times):.2f} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
