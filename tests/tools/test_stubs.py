"""The stub of the compiled module is the output of tools/stubs.py: docstrings and types have one source."""

from __future__ import annotations

import ast

import stubs


def test_the_stub_is_current() -> None:
    assert stubs.STUB.read_text(encoding="utf-8") == stubs.stub(), "run python tools/stubs.py"


def test_everything_is_explained() -> None:
    """Each class has a docstring, and all types are known to Python."""
    text = stubs.STUB.read_text(encoding="utf-8")
    assert "eagle3::" not in text
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert len(classes) > 25
    assert all(ast.get_docstring(node) for node in classes)
