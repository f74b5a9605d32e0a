"""Imports run one way, and no object uses a private name of another: read from the sources."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter

from import_graph import CHECKOUT, HEADS, PACKAGE, import_graph, modules

PRIVATE = {
    "llama_cpp.llama_cpp._lib": "llama_cpp has no public name for the library that it has loaded",
    "libllama()._name": "ctypes' own for the path of a library",
    "grammar._grammar": "LlamaGrammar has no public name for its text",
    "grammar._root": "the same for its root",
    "handler._mtmd_cpp": "the module through which a chat handler calls libmtmd",
    "super()._create_completion": "the generator that Llama's create_completion wraps, to override",
    "super()._format_action_invocation": "argparse's method for a flag in the help, to override",
    "torch.cpu._is_avx512_bf16_supported": "torch has no public name for it",
    "torch.cpu._is_amx_tile_supported": "the same",
    "os._exit": "public in spite of its name",
    "sys.modules[__package__]._core": "our own compiled module",
}
"""Private names that may be used -> the reason; all but the last are other libraries'."""


def rooms(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph of the first package's rooms: its folders, and the modules beside them."""
    found: dict[str, set[str]] = {}
    for name, imported in graph.items():
        if name.startswith(f"{PACKAGE}."):
            room = name.split(".")[1]
            of_others = {other.split(".")[1] for other in imported if other.startswith(f"{PACKAGE}.")}
            found.setdefault(room, set()).update(of_others - {room})
    return found


def test_rooms_import_one_way() -> None:
    """No room imports one that imports it, directly or through others, and no chain of imports is longer than this."""
    graph = rooms(import_graph())
    floors: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():  # CycleError names the rooms
        floors[room] = 1 + max((floors[other] for other in graph[room]), default=0)
    assert max(floors.values()) <= 12, floors
    assert len(graph) <= 25


def test_imports_run_one_way() -> None:
    graph = import_graph()
    assert len(graph) > 150
    TopologicalSorter(graph).prepare()  # CycleError names the modules

    def below(*starts: str) -> set[str]:
        """Return all modules that these packages need, directly or not."""
        unread = [name for name in graph if name.startswith(tuple(f"{PACKAGE}.{start}." for start in starts))]
        found: set[str] = set()
        while unread:
            name = unread.pop()
            if name not in found:
                found.add(name)
                unread += graph[name]
        return {name.split(".")[1] for name in found}

    assert "cli" not in below("serve", "chat", "engine", "hub")
    assert below("engine") <= {"engine", "errors", "guard"}
    assert "llama" not in below("hub", "draft")


def test_heads_are_imported_by_one_door() -> None:
    """Running models works without the package of heads: `extras.heads` is around each import of that package."""
    doors = []
    for name, tree in modules().items():
        if name.startswith(f"{HEADS}."):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.With) and ast.unparse(node.items[0].context_expr).startswith("heads("):
                doors.append(name)
                node.body = []
        assert not [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and HEADS in ast.unparse(node)
        ]
    assert sorted(doors) == [f"{PACKAGE}.cli.__init__", f"{PACKAGE}.hub.pair_files"]


def test_no_private_name_of_another_object() -> None:
    used: dict[str, set[str]] = {}
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
                continue
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                continue
            assert ast.unparse(node) in PRIVATE, f"{name}, line {node.lineno}"
            used.setdefault(ast.unparse(node), set()).add(name)
    assert used.keys() == PRIVATE.keys()
    assert {name: len(where) for name, where in used.items()} == dict.fromkeys(PRIVATE, 1)


def test_helpers_are_named() -> None:
    """tests/README.md names every module and folder of helpers, and every folder of tests."""
    tests = CHECKOUT / "tests"
    text = (tests / "README.md").read_text(encoding="utf-8")
    helpers = [path for path in (tests / "support").iterdir() if path.suffix == ".py" or path.is_dir()]
    names = {path.stem for path in (*helpers, *tests.iterdir()) if path.is_dir() or path.parent != tests} - {"support"}
    words = {word.strip("/") for word in text.split("`")[1::2]}
    assert {name for name in names if not name.startswith((".", "_"))} <= words
