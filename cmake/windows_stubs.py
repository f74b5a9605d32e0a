"""Write sources of stand-ins for llama.cpp's DLLs, called by LlamaCpp.cmake: windows_stubs.py SOURCES VENDOR FOLDER.

A module for Windows names the DLL that each function comes from, so that a stand-in must define all that its headers
declare. What they do is never run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_DECLARED = re.compile(r"\b(?:LLAMA_API|GGML_API|GGML_BACKEND_API)\s([^;{}]*?)\b((?:llama|ggml|gguf)_\w+)\s*\(([^;]*);")
_DEFINED = re.compile(r"^[\w *]+\b(ggml_\w+)\(", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def declared(header: Path) -> list[tuple[str, str, str]]:
    """(type, name, what follows) of each exported function."""
    return [match.groups() for match in _DECLARED.finditer(_COMMENT.sub("", header.read_text(encoding="utf-8")))]


def c_functions(names: set[str]) -> str:
    """Functions that are called by their names alone."""
    return "".join(f'extern "C" __declspec(dllexport) void {name}(void) {{}}\n' for name in sorted(names))


def main(sources: Path, vendor: Path, out: Path) -> None:
    """Write llama.cpp, ggml.cpp and ggml-base.cpp."""
    ggml = {name for h in sorted((sources / "ggml/include").glob("*.h")) for _, name, _ in declared(h)}
    registry = set(_DEFINED.findall((sources / "ggml/src/ggml-backend-reg.cpp").read_text(encoding="utf-8")))
    llama = {name for _, name, _ in declared(sources / "include/llama.h")}
    # these are called by names that the compiler makes of their arguments
    mangled = "".join(
        f"__declspec(dllexport) {type_}{name}({rest} {{ std::abort(); }}\n"
        for type_, name, rest in declared(vendor / "llama_ext.h")
    )
    texts = {
        "llama": f'#include <cstdlib>\n#include "llama_ext.h"\n{mangled}',
        "llama-c": c_functions(llama),
        "ggml": c_functions(ggml & registry),
        "ggml-base": c_functions(ggml - registry),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / f"{name}.cpp").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
