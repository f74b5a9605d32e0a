"""Write the recorded texts that benchmarks replay, from CPython's own sources: edits.jsonl, quotes.jsonl, free.jsonl.

edits: a function, an instruction to change it (a name, a parameter, a line, as in many commits), and the whole function
again. quotes: functions, a question, and an answer that quotes two of them. free: the first half of a piece of a
module, and the second half. Deterministic for one version of CPython; the files here are from 3.11. Functions and
modules are not chosen by a model's answers.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    *("argparse", "bisect", "calendar", "cmd", "configparser", "csv", "difflib", "fileinput", "fractions", "gettext"),
    *("glob", "heapq", "imaplib", "ipaddress", "mailbox", "netrc", "optparse", "pprint", "random", "sched", "shelve"),
    *("shlex", "statistics", "string", "tabnanny", "textwrap", "timeit", "tokenize", "trace", "webbrowser", "zipapp"),
)
N = 6  # texts of each kind


def functions(n_lines: range) -> Iterator[tuple[str, str]]:
    """Yield (module, source) of functions of so many lines, dedented, one module after the other."""
    for name in MODULES:
        path = Path(sysconfig.get_path("stdlib"), f"{name}.py")
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 in n_lines:
                yield name, "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : node.end_lineno])


def edit(source: str, rng: random.Random) -> tuple[str, str]:
    """Return (instruction, changed source): two of several small edits."""
    said = []
    lines = source.split("\n")
    for what in rng.sample(("rename", "parameter", "log", "drop"), 2):
        if what == "rename":
            names = re.findall(r"^\s+([a-z_]{3,}) = ", "\n".join(lines), re.MULTILINE)
            if names:
                old = rng.choice(names)
                said.append(f"rename {old} to {old}_")
                lines = [re.sub(rf"\b{old}\b", f"{old}_", line) for line in lines]
        elif what == "parameter" and "):" in lines[0]:
            said.append("take a parameter verbose")
            lines[0] = lines[0].replace("):", ", verbose=False):")
        elif what == "log":
            i = rng.randrange(len(lines) // 2, len(lines))
            indent = re.match(r"\s*", lines[i])[0]
            said.append(f"log before line {i + 1}")
            lines.insert(i, f'{indent}log.debug("at line {i + 1}")')
        elif what == "drop":
            i = next((i for i, line in enumerate(lines) if line.strip().startswith("#")), None)
            if i is not None:
                said.append(f"drop the comment in line {i + 1}")
                del lines[i]
    return ", ".join(said), "\n".join(lines)


def edits(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield edits of a file."""
    for name, source in functions(range(14, 26)):
        what, after = edit(source, rng)
        if what and after != source:
            yield f"# {name}.py\n{source}\n\n# {name}.py, changed: {what}\n", f"{after}\n"


def quotes(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield questions with answers that quote."""
    found = list(functions(range(7, 12)))
    for i in range(0, len(found) - 3, 3):
        parts = found[i : i + 3]
        first, second = rng.sample(parts, 2)
        prompt = "".join(f'"""From {name}"""\n{source}\n\n' for name, source in parts)
        names = [re.search(r"def (\w+)", source)[1] for _, source in (first, second)]
        prompt += f'"""Question: what do {names[0]} and {names[1]} do? Quote them.\n\nAnswer:\n'
        answer = f"In {first[0]} there is {names[0]}:\n\n{first[1]}\n\nIt is called by others of that module. "
        answer += f"What {names[1]} of {second[0]} does is shorter to say:\n\n{second[1]}\n\nThat is all of both."
        yield prompt, f'{answer}\n"""\n'


def free(_: random.Random) -> Iterator[tuple[str, str]]:
    """Yield free text, with no more repetition than code has."""
    for name in MODULES:
        lines = Path(sysconfig.get_path("stdlib"), f"{name}.py").read_text(encoding="utf-8").splitlines()
        if len(lines) >= 120:
            yield "\n".join(lines[60:75]) + "\n", "\n".join(lines[75:105]) + "\n"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for kind in (edits, quotes, free):
        found = list(kind(random.Random(0)))
        chosen = found[:: max(1, len(found) // N)][:N]
        text = "".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in chosen)
        (folder / f"{kind.__name__}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
