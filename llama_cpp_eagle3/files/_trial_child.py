"""The program that `trial` runs in a child process: it loads a model without its weights, and makes a context.

It imports nothing of this package and no NumPy, so that it starts quickly.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import types
from collections.abc import Mapping
from typing import Any

REFUSED = 3
"""The status if llama.cpp does not load the file."""

_ASKS = b"create_tensor: loading tensor "
"""How llama.cpp logs that it asks a file for a tensor."""

_LEVEL_ERROR = 4  # ggml.h's GGML_LOG_LEVEL_ERROR


def main() -> None:
    """Load what the request on stdin names. The status is REFUSED, with the reason on stderr, if llama.cpp does not."""
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    # without accelerators, which take time to start, and without a backtrace: the exit status is enough
    os.environ.update({"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "GGML_NO_BACKTRACE": "1"})
    _limit(request["cpu_seconds"])
    package = types.ModuleType("llama_cpp")  # without what its __init__ imports
    package.__path__ = [request["llama_cpp"]]
    sys.modules["llama_cpp"] = package
    lib: Any = importlib.import_module("llama_cpp.llama_cpp")

    errors: list[str] = []
    tensors: list[str] = []

    def log(level: int, text: bytes, _: Any) -> None:
        if level == _LEVEL_ERROR:
            errors.append(text.decode(errors="replace").strip())
        elif text.startswith(_ASKS):
            tensors.append(text[len(_ASKS) :].decode(errors="replace").strip())

    callback = lib.llama_log_callback(log)
    lib.llama_log_set(callback, None)
    params = lib.llama_model_default_params()
    params.no_alloc = not request["vocab_only"]
    params.vocab_only = request["vocab_only"]
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    params.n_gpu_layers = 0
    no_devices = (ctypes.c_void_p * 1)()
    params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
    overrides = override_array(lib, request["kv_overrides"])
    params.kv_overrides = overrides
    model = lib.llama_model_load_from_file(os.fsencode(request["path"]), params)
    if not model:
        said = [*(f"REASON {text}\n" for text in errors[:1]), *(f"TENSOR {name}\n" for name in tensors)]
        sys.stderr.buffer.write("".join(said).encode())
        sys.stderr.flush()
        os._exit(REFUSED)
    if request["projector"] is not None:
        _load_projector(request, model)
    elif not request["vocab_only"]:
        options = lib.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 512, 64, 64
        options.flash_attn_type = int(request["flash_attn"])
        lib.llama_init_from_model(model, options)
    os._exit(0)  # without freeing anything, which takes time


def _load_projector(request: Mapping[str, Any], model: Any) -> None:
    """Load a projector for a model, and build its graphs."""
    mtmd: Any = importlib.import_module("llama_cpp.mtmd_cpp")
    params = mtmd.mtmd_context_params_default()
    params.use_gpu, params.warmup, params.flash_attn_type = False, True, int(request["flash_attn"])
    mtmd.mtmd_init_from_file(os.fsencode(request["projector"]), model, params)


def _limit(cpu_seconds: int) -> None:
    """Write no core file, and end by SIGXCPU after so many seconds of the processor."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for limit, n in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, cpu_seconds)):
        resource.setrlimit(limit, (n, resource.getrlimit(limit)[1]))


def override_array(lib: Any, values: Mapping[str, bool | int | float | str]) -> Any:
    """An array of llama_model_kv_override, which ends with an empty key. lib: the module llama_cpp.llama_cpp."""
    array = (lib.llama_model_kv_override * (len(values) + 1))()
    for item, (key, value) in zip(array, values.items(), strict=False):
        item.key = key.encode()
        if isinstance(value, bool):
            item.tag, item.value.val_bool = lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
        elif isinstance(value, int):
            item.tag, item.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
        elif isinstance(value, float):
            item.tag, item.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
        else:
            item.tag, item.value.val_str = lib.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
    return array


if __name__ == "__main__":
    main()
