"""Write prompts that the head for Qwen2.5-Coder learns from: questions of every kind, functions, edits, holes in files.

    python benchmarks/code_prompts.py prompts.jsonl --n 6000

The code is of Python's standard library, of packages that ``heads[train]`` installs and of this project. One file in
eight, and those that tasks/ has copies of, are left out (`is_kept_out`), so that a head is measured on text that it did
not learn from. Functions to write are documented ones of these files and the exercises of replay/exercises.txt, none of
HumanEval; questions come from replay/everyday.json (languages, SQL, shell, configuration, concepts, tests, prose) and
head_prompts.py. The file is for ``llama-cpp-eagle3 train -f``; the same seed gives the same file with the same sources
and the same Python.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from head_prompts import documented_functions, question

PROJECT = Path(__file__).parents[1]
EXERCISES = PROJECT / "benchmarks" / "replay" / "exercises.txt"
EVERYDAY = json.loads((PROJECT / "benchmarks" / "replay" / "everyday.json").read_text(encoding="utf-8"))
_LIBRARY = (
    "json", "email", "http", "urllib", "collections", "concurrent", "importlib", "logging", "asyncio", "unittest",
)  # fmt: skip
_PACKAGES = ("jinja2", "mpmath", "networkx", "numpy", "sympy")
"""Packages whose functions have long docstrings with examples."""
_N_CHARS = 1700
"""Characters of a piece of code, at most: a longer one leaves too little room for the answer."""
_WHOLE = (
    "Return the whole code in one code block.", "Return the whole code with nothing else changed.",
    "Give me the complete new code.", "Answer with the full code, nothing else.", "",
)  # fmt: skip
_EDITS = (
    "Add type hints to this code.", "Add a docstring to every function that has none.", "Add comments to this code.",
    "Rename `{name}` to `{new}` everywhere.", "Rename the variable `{name}` to `{new}`.",
    "Rename `{name}` to `{new}` everywhere.", "Add a parameter `verbose` that prints what is done.",
    "Raise a ValueError with a clear message if an argument is wrong.", "Add logging to this code.",
    "Make this code shorter without changing what it does.", "Split this into smaller functions.",
    "Return early instead of nesting.", "Replace the string formatting by f-strings.", "Handle None and empty values.",
    "Make it faster where you can.", "Write it with a dataclass where that helps.",
    "Translate the docstrings to German.",
    "Add an example to each docstring.", "Add a function that tests this code, after it.",
    "Give the variables clearer names.",
)  # fmt: skip
_BUGS = (
    "This code has a bug. Find it and mend it.", "There is an error in this code. Correct it.",
    "This does not do what it should. Fix the mistake.",
)  # fmt: skip
_EXPLAIN = (
    "Explain what this code does.", "What does this do? Answer in two sentences.", "Explain this code line by line.",
    "Review this code: what could be better?", "Which errors can this code raise, and when?",
    "What is the complexity of this code?", "Write unit tests for this code with pytest.",
    "Write a docstring for this.", "Show with an example how this is used.", "Summarize this code in a list.",
    "Translate this to JavaScript.", "Translate this to C++.", "Which edge cases does this code not handle?",
    'Describe this code as JSON with the keys "name", "purpose", "arguments" and "returns".',
)  # fmt: skip
_ASK = (
    "{code}", "{code}", "{code}", "Complete this function:\n\n```python\n{code}```",
    "Write the body of this Python function.\n\n{code}", "Please implement the following function:\n\n{code}",
    "```python\n{code}```", "{code}\nWrite the whole function.", "Solve this in Python:\n\n{code}",
)  # fmt: skip
_NEW_NAMES = ("source", "entries", "current", "result", "options", "target", "parts", "found", "handle", "state")
_MUTATIONS = (
    ("==", "!="), ("<", "<="), (">", ">="), (" + ", " - "), (" and ", " or "), ("not ", ""), ("True", "False"),
    ("[0]", "[1]"), ("return ", "yield "), ("None", "0"),
)  # fmt: skip
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp"}


def is_kept_out(path: Path) -> bool:
    """Whether a file is left out of training."""
    is_measured = (PROJECT / "benchmarks" / "tasks" / f"fim_{path.name}.txt").exists()
    return is_measured or zlib.crc32(path.name.encode()) % 8 == 0


def sources() -> list[Path]:
    """Return the files that code is taken from, the project's three times, since they are few."""
    library, installed = (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib"))
    folders = [library / name for name in _LIBRARY] + [installed / name for name in _PACKAGES]
    found = sorted(library.glob("*.py")) + sorted(p for folder in folders for p in folder.rglob("*.py"))
    ours = sorted((PROJECT / "llama_cpp_eagle3").rglob("*.py"))
    ours += sorted(p for suffix in ("*.cpp", "*.h") for p in (PROJECT / "csrc").rglob(suffix))
    return [path for path in found + 3 * ours if not is_kept_out(path)]


def _piece(rng: random.Random, path: Path) -> str | None:
    """Return some functions or classes of a Python file, or blocks of lines of another file."""
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    if path.suffix == ".py":
        try:
            nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        except SyntaxError:
            return None
        ranges = [(n.lineno - 1, n.end_lineno or n.lineno) for n in nodes]
    else:
        starts = [i + 1 for i, line in enumerate(lines[:-1]) if not line and lines[i + 1][:1].isalpha()]
        ranges = [(a, b) for i, a in enumerate(starts) for b in starts[i + 1 : i + 4]]
    if not ranges:
        return None
    first, last = rng.choice(ranges)
    if rng.random() < 0.35:  # a small file: a piece and the lines after it
        last = max(b for a, b in ranges if a <= last + 25)
    block = lines[first:last]
    indent = min((len(line) - len(line.lstrip()) for line in block if line.strip()), default=0)
    piece = "\n".join(line[indent:] for line in block).strip() + "\n"
    return piece if 120 < len(piece) < _N_CHARS else None


def _names(piece: str) -> list[str]:
    """Return the names that occur several times in a piece of code."""
    words = [word for word in "".join(c if c.isidentifier() else " " for c in piece).split() if len(word) > 2]
    known = {"self", "def", "return", "for", "class", "None", "not", "and", "else", "elif", "try", "except", "import"}
    return sorted({word for word in words if words.count(word) > 2 and word not in known and word.islower()})


def _edit(rng: random.Random, piece: str) -> tuple[str, str] | None:
    """Return an instruction and the code that it is about."""
    if rng.random() < 0.25:
        old, new = rng.choice(_MUTATIONS)
        places = [i for i in range(len(piece)) if piece.startswith(old, i)]
        if not places:
            return None
        i = rng.choice(places)
        return rng.choice(_BUGS), piece[:i] + new + piece[i + len(old) :]
    form, names = rng.choice(_EDITS), _names(piece)
    if "{name}" in form and not names:
        return None
    return form.format(name=rng.choice(names or [""]), new=rng.choice(_NEW_NAMES)), piece


def _ask(rng: random.Random, instruction: str, piece: str, path: Path) -> dict[str, Any]:
    code = f"```{_LANGUAGES[path.suffix]}\n{piece}```"
    if rng.random() < 0.2:
        code = f"`{path.name}`:\n\n{code}"
    content = f"{instruction}\n\n{code}" if rng.random() < 0.75 else f"{code}\n\n{instruction}"
    return {"messages": [{"role": "user", "content": content}]}


def _documented(rng: random.Random, paths: list[Path]) -> dict[str, Any] | None:
    """Return a function of a Python file up to the end of its docstring, to be completed."""
    found = documented_functions(rng.choice(paths).read_text(encoding="utf-8", errors="replace"))
    return _function(rng, rng.choice(found)[1]) if found else None


def _function(rng: random.Random, code: str) -> dict[str, Any] | None:
    if not 80 < len(code) < 1000:
        return None
    return {"messages": [{"role": "user", "content": rng.choice(_ASK).format(code=code + "\n")}]}


def _edits(rng: random.Random, paths: list[Path]) -> dict[str, Any] | None:
    path = rng.choice(paths)
    piece = _piece(rng, path)
    edit = piece and _edit(rng, piece)
    if not edit:
        return None
    return _ask(rng, f"{edit[0]} {rng.choice(_WHOLE)}".strip(), edit[1], path)


def _explanation(rng: random.Random, paths: list[Path]) -> dict[str, Any] | None:
    path = rng.choice(paths)
    piece = _piece(rng, path)
    return _ask(rng, rng.choice(_EXPLAIN), piece, path) if piece else None


def _hole(rng: random.Random, paths: list[Path]) -> dict[str, Any] | None:
    """Return a file around a cursor, in the form that models of Qwen2.5-Coder's family know."""
    text = rng.choice(paths).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines(keepends=True)
    if len(lines) < 30:
        return None
    i = rng.randrange(5, len(lines) - 5)
    column = rng.randrange(len(lines[i]))
    before = "".join(lines[max(0, i - rng.randint(5, 30)) : i]) + lines[i][:column]
    after = lines[i][column:] if rng.random() < 0.5 else "\n"
    after += "".join(lines[i + rng.randint(1, 5) : i + rng.randint(6, 20)])
    return {"text": f"<|fim_prefix|>{before[-1200:]}<|fim_suffix|>{after[:800]}<|fim_middle|>"}


def _everyday(rng: random.Random) -> dict[str, Any]:
    """Return a question of a kind that developers ask every day."""
    kind = rng.choices(("code", "features", "sql", "shell", "configuration", "concepts", "tests", "prose"),
                       (40, 12, 9, 10, 9, 9, 5, 6))[0]  # fmt: skip
    language = rng.choice(EVERYDAY["languages"])
    if kind == "features":
        language, features = rng.choice(list(EVERYDAY[kind]["of"].items()))
        text = rng.choice(EVERYDAY[kind]["asks"]).format(language=language, feature=rng.choice(features))
    else:
        text = rng.choice(EVERYDAY[kind]["asks"]).format(language=language, task=rng.choice(EVERYDAY[kind]["tasks"]))
    return {"messages": [{"role": "user", "content": text[0].upper() + text[1:]}]}


def prompts(n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield prompts as lines for ``train -f``, no two of them the same."""
    rng = random.Random(seed)
    paths, exercises = sources(), EXERCISES.read_text(encoding="utf-8").split("\n###\n")
    kinds: list[tuple[int, Callable[[], dict[str, Any] | None]]] = [
        (60, lambda: _everyday(rng)), (6, lambda: {"messages": [{"role": "user", "content": question(rng)}]}),
        (14, lambda: _function(rng, rng.choice(exercises).strip("\n"))), (7, lambda: _documented(rng, paths)),
        (8, lambda: _edits(rng, paths)), (4, lambda: _explanation(rng, paths)), (1, lambda: _hole(rng, paths)),
    ]  # fmt: skip
    seen: set[str] = set()
    while len(seen) < n:
        _, make = rng.choices(kinds, [weight for weight, _ in kinds])[0]
        prompt = make()
        text = json.dumps(prompt, ensure_ascii=False)
        if prompt is not None and text not in seen:
            seen.add(text)
            yield prompt


def main() -> None:
    """Write the prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--n", type=int, default=6000, help="prompts (default: 6000)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with args.output.open("w", encoding="utf-8") as f:
        for prompt in prompts(args.n, args.seed):
            f.write(json.dumps(prompt, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
