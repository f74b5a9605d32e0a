"""Change a target's chat template."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf

from llama_cpp_eagle3_heads.convert.gguf_file import key_values

from .target import Target


def without_template(target: Target, path: Path) -> Target:
    """Copy the model to a file without a chat template."""
    return with_template(target, path, "")


def with_template(target: Target, path: Path, template: str) -> Target:
    """Copy the model to a file with another chat template; "" is none."""
    reader = gguf.GGUFReader(target.path)
    writer = gguf.GGUFWriter(path, target.arch)
    for entry in key_values(target.path, reader):
        if entry.key not in ("tokenizer.chat_template", "general.architecture"):
            writer.add_key_value(entry.key, entry.value, entry.kind, entry.sub_kind)
    if template:
        writer.add_chat_template(template)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(target, path=str(path))
