"""Write llama_cpp_eagle3/_core.pyi from the compiled module's signatures and docstrings (csrc/bindings).

python tools/stubs.py      (needs the module compiled from these sources, and the packages of the extra `test`)
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

STUB = Path(__file__).resolve().parents[1] / "llama_cpp_eagle3" / "_core.pyi"
_HEAD = '''"""{doc}

Made by tools/stubs.py from csrc/bindings: change the docstrings there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine.draft import Draft

'''
_NAMES = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "collections.abc.": "",
    "numpy.typing.": "npt.",
    "numpy.": "np.",
    "typing.": "",
    "llama_cpp_eagle3.engine.draft.": "",
}
"""Pybind11's spelling -> the meant type: an int, and not everything that converts to one."""
_BARE = {"list": "list[Any]", "object": "Any"}
_BARE_DICT = re.compile(r"\bdict\b(?!\[)")
_OF_ENUMS = {f"__{name}__" for name in ("eq", "getstate", "hash", "index", "init", "int", "ne", "setstate", "str")}


def _full(annotation: ast.expr) -> ast.expr:
    """A type with the arguments that pybind11 leaves out."""
    text = ast.unparse(annotation)
    text = _BARE.get(text) or _BARE_DICT.sub("dict[str, Any]", text)
    return ast.parse(text, mode="eval").body


class _Tidy(ast.NodeTransformer):
    """Shortens stubgen's text."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        dropped = {"__repr__", "__members__"}
        if any(_name(item) == "__members__" for item in node.body):
            dropped |= _OF_ENUMS
        node.body = [item for item in node.body if _name(item) not in dropped]
        self.generic_visit(node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if ast.unparse(node.value) == "typing.Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]  # without the array's type or size
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        arguments = node.args
        if arguments.vararg is not None and arguments.vararg.annotation is None:
            arguments.vararg.annotation = ast.Name("object")
        n_needed = len(arguments.args) - len(arguments.defaults)
        given = [*zip(arguments.args[n_needed:], arguments.defaults, strict=True)]
        given += [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        for argument, default in given:
            if isinstance(default, ast.Constant) and default.value is None and argument.annotation is not None:
                text = ast.unparse(argument.annotation)
                if "None" not in text:
                    argument.annotation = ast.parse(f"{text} | None", mode="eval").body
        arguments.defaults = [_plain(default) for default in arguments.defaults]
        arguments.kw_defaults = [default and _plain(default) for default in arguments.kw_defaults]
        if node.returns is not None:
            node.returns = _full(node.returns)
        for argument in (*arguments.args, *arguments.kwonlyargs):
            if argument.annotation is not None and "dict" in ast.unparse(argument.annotation):
                argument.annotation = _full(argument.annotation)
        return node


def _plain(default: ast.expr) -> ast.expr:
    """Return a default that can stand in a signature."""
    return default if isinstance(default, ast.Constant | ast.UnaryOp) else ast.Constant(...)


def _name(node: ast.AST) -> str:
    """Return the name of a function or an attribute."""
    return str(getattr(node, "name", "") or ast.unparse(getattr(node, "target", ast.Pass())))


def _with_doc(node: ast.ClassDef | ast.FunctionDef, depth: int = 0) -> None:
    """Put docstrings in, without the indentation of the C++ source, in lines of usual length."""
    doc = ast.get_docstring(node)
    if doc is not None:
        margin = " " * 4 * (depth + 1)
        paragraphs = ["\n".join(_wrapped(part, 120 - len(margin))) for part in inspect.cleandoc(doc).split("\n\n")]
        text = "\n\n".join(paragraphs)
        if "\n" in text or len(text) > 120 - len(margin) - 6:
            text += "\n"
        node.body[0] = ast.Expr(ast.Constant(text.replace("\n", f"\n{margin}").replace(f"{margin}\n", "\n")))
        if len(node.body) == 2 and ast.unparse(node.body[1]) == "...":
            node.body.pop()
    for item in node.body:
        if isinstance(item, ast.ClassDef | ast.FunctionDef):
            _with_doc(item, depth + 1)


def _wrapped(paragraph: str, width: int) -> list[str]:
    """Return a paragraph's lines unchanged if they fit, else wrapped."""
    lines = paragraph.split("\n")
    width -= 6  # space for quotes at both ends
    return lines if max(map(len, lines)) <= width else textwrap.wrap(paragraph, width)


def _value(name: str, value: object) -> str:
    """Return the stub of a constant, without its value, which depends on the machine or the sources."""
    if isinstance(value, tuple):
        return f"{name}: tuple[{', '.join(type(item).__name__ for item in value)}]\n"
    return f"{name}: {type(value).__name__}\n"


def stub() -> str:
    """Return the text of the stub."""
    from llama_cpp_eagle3 import _core

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", _core.__name__, "-o", folder, "--exit-code"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0 or "ERROR" in done.stderr:
            raise RuntimeError(f"pybind11-stubgen failed:\n{done.stderr}")
        tree = ast.parse(Path(folder, *_core.__name__.split(".")).with_suffix(".pyi").read_text(encoding="utf-8"))
    parts = [_HEAD.format(doc=inspect.cleandoc(_core.__doc__ or ""))]
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            tidy = _Tidy().visit(node)
            _with_doc(tidy)
            text = ast.unparse(tidy)
            for long, short in _NAMES.items():
                text = text.replace(long, short)
            parts.append(text + "\n")
    parts += [_value(name, value) for name, value in vars(_core).items() if name.isupper()]
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(STUB), "-"]
    return subprocess.run(command, input="\n".join(parts), capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Run as a program."""
    STUB.write_text(stub(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
