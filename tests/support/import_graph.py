"""Which module of the two packages imports which, read from the sources."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = "llama_cpp_eagle3"
HEADS = "llama_cpp_eagle3_heads"
CHECKOUT = Path(__file__).parents[2]
_ROOTS = (CHECKOUT / PACKAGE, CHECKOUT / "heads" / HEADS)
_COMPILED = (f"{PACKAGE}._core", f"{PACKAGE}._chat")


def modules() -> dict[str, ast.Module]:
    """Return each module of both packages, parsed."""
    found = {}
    for root in _ROOTS:
        for path in root.rglob("*.py"):
            parts = path.relative_to(root.parent).with_suffix("").parts
            found[".".join(parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(name: str, tree: ast.Module, names: set[str]) -> set[str]:
    """Return modules of the packages that one imports, in functions too, but not those for type checkers only."""
    found = set()
    unread = list(tree.body)
    while unread:
        node = unread.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        unread += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level > 0 else []
            base = ".".join(above + ([node.module] if node.module else []))
            for alias in node.names:
                if f"{base}.{alias.name}" in _COMPILED:
                    continue
                for module in (f"{base}.{alias.name}", f"{base}.{alias.name}.__init__", base, f"{base}.__init__"):
                    if module in names:
                        found.add(module)
                        break
    return found - {name}


def import_graph() -> dict[str, set[str]]:
    """Return each module -> the modules that it imports."""
    trees = modules()
    return {name: imports(name, tree, set(trees)) for name, tree in trees.items()}


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next one, as many as there are anywhere."""
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        below = max((chains[other] for other in graph[name]), key=len, default=[])
        chains[name] = [name, *below]
    return max(chains.values(), key=len)
