"""Write prompts that SmolLM2's head learns from: functions to complete, and questions in the style of MT-bench.

    python benchmarks/head_prompts.py prompts.jsonl --n 4000

Functions are beginnings of Python's standard library (with docstrings) and functions made by rules, with examples that
are computed; questions are made by rules over topics. None is from HumanEval or questions.jsonl. The file is for
``llama-cpp-eagle3 train -f``; the same seed gives the same file with the same Python. With --project the prompts are
one kind of traffic, to adapt a head to.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import random
import statistics
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RULES = json.loads((Path(__file__).parent / "replay" / "prompt_rules.json").read_text(encoding="utf-8"))

# --- functions by rules: elements taken of a list, an operation on them, and the result ---

_FILTERS: dict[str, list[tuple[str, str, Callable[[Any], bool]]]] = {
    "int": [
        ("even", "even", lambda x: x % 2 == 0),
        ("odd", "odd", lambda x: x % 2 == 1),
        ("positive", "positive", lambda x: x > 0),
        ("negative", "negative", lambda x: x < 0),
        ("large", "greater than 10", lambda x: x > 10),
        ("small", "less than 5", lambda x: x < 5),
        ("two_digit", "two-digit", lambda x: 10 <= abs(x) <= 99),
        ("nonzero", "non-zero", lambda x: x != 0),
        ("multiples_of_three", "divisible by three", lambda x: x % 3 == 0),
        ("multiples_of_five", "divisible by five", lambda x: x % 5 == 0),
        ("square", "perfect squares", lambda x: x >= 0 and int(x**0.5) ** 2 == x),
        ("all", "", lambda x: True),
    ],
    "str": [
        ("short", "shorter than four characters", lambda x: len(x) < 4),
        ("long", "longer than five characters", lambda x: len(x) > 5),
        ("vowel", "starting with a vowel", lambda x: x[:1] in set("aeiou")),
        ("capitalized", "starting with a capital letter", lambda x: x[:1].isupper()),
        ("even_length", "of even length", lambda x: len(x) % 2 == 0),
        ("with_a", "containing the letter 'a'", lambda x: "a" in x),
        ("ending_in_s", "ending with 's'", lambda x: x.endswith("s")),
        ("palindromic", "that are palindromes", lambda x: x == x[::-1]),
        ("all", "", lambda x: True),
    ],
}
_MAPS: dict[str, list[tuple[str, str, Callable[[Any], Any]]]] = {
    "int": [
        ("", "", lambda x: x),
        ("squares_of", "squares of the", lambda x: x * x),
        ("absolute", "absolute values of the", abs),
        ("doubled", "doubles of the", lambda x: 2 * x),
        ("last_digits_of", "last digits of the", lambda x: abs(x) % 10),
        ("digit_sums_of", "sums of the digits of the", lambda x: sum(map(int, str(abs(x))))),
        ("cubes_of", "cubes of the", lambda x: x**3),
    ],
    "str": [
        ("", "", lambda x: x),
        ("lengths_of", "lengths of the", len),
        ("first_letters_of", "first letters of the", lambda x: x[:1]),
        ("reversed", "reversed", lambda x: x[::-1]),
        ("uppercase", "upper-case versions of the", str.upper),
        ("vowel_counts_of", "numbers of vowels in the", lambda x: sum(c in "aeiouAEIOU" for c in x)),
    ],
}
_ENDS: list[tuple[str, str, str, Callable[[list[Any]], Any]]] = [
    ("sum", "Return the sum of the {what}.", "int", sum),
    ("count", "Count the {what}.", "int", len),
    (
        "largest",
        "Return the largest of the {what}, or None if there are none.",
        "Optional",
        lambda v: max(v, default=None),
    ),
    (
        "smallest",
        "Find the smallest of the {what}; return None for an empty list.",
        "Optional",
        lambda v: min(v, default=None),
    ),
    ("sorted", "Return the {what} in ascending order.", "List", sorted),
    ("descending", "Sort the {what} from the largest to the smallest.", "List", lambda v: sorted(v, reverse=True)),
    ("list", "Return a list of the {what}.", "List", list),
    (
        "unique",
        "Return the {what} without duplicates, in the order of their first occurrence.",
        "List",
        lambda v: list(dict.fromkeys(v)),
    ),
    (
        "average",
        "Calculate the average of the {what}. Return 0.0 if there are none.",
        "float",
        lambda v: round(statistics.fmean(v), 2) if v else 0.0,
    ),
    ("product", "Return the product of the {what}.", "int", math.prod),
    (
        "running_total",
        "Given a list, return the running totals of the {what}.",
        "List",
        lambda v: [sum(v[: i + 1]) for i in range(len(v))],
    ),
    ("every_other", "Return every second one of the {what}, beginning with the first.", "List", lambda v: v[::2]),
    ("reverse", "Return the {what} in reverse order.", "List", lambda v: v[::-1]),
    ("any", "Check if there are any {what}.", "bool", bool),
    (
        "most_common",
        "Return the most frequent of the {what}, or None.",
        "Optional",
        lambda v: max(v, key=v.count) if v else None,
    ),
    ("join", "Join the {what} with commas.", "str", lambda v: ",".join(map(str, v))),
    ("pairs", "Return the pairs of neighbours among the {what}.", "pairs", lambda v: list(itertools.pairwise(v))),
    (
        "middle",
        "Return the median element of the sorted {what}, or None.",
        "Optional",
        lambda v: sorted(v)[len(v) // 2] if v else None,
    ),
]


def _made_up(rng: random.Random) -> str:
    """Return a function over a list, with its docstring and computed examples."""
    kind = rng.choice(("int", "int", "str"))
    f_name, f_text, keep = rng.choice(_FILTERS[kind])
    m_name, m_text, change = rng.choice(_MAPS[kind])
    while True:
        e_name, e_text, out, end = rng.choice(_ENDS)
        values = change(RULES["list_items"][0] if kind == "str" else 12)
        if not (isinstance(values, str) and e_name in ("sum", "average", "product", "running_total", "join")):
            break
    noun = "numbers" if kind == "int" else rng.choice(("strings", "words"))
    if f_text.startswith(
        ("greater", "less", "divisible", "shorter", "longer", "starting", "of ", "containing", "ending", "that")
    ):
        what = f"{noun} {'that are ' if f_text[0] in 'gld' or f_text.startswith('sh') else ''}{f_text}"
    elif f_text == "perfect squares":
        what = "numbers that are perfect squares"
    else:
        what = f"{f_text} {noun}".strip()
    what = f"{m_text} {what}".strip() + rng.choice(("", " in the given list", " in the list"))
    name = "_".join(part for part in (e_name, m_name, f_name if f_name != "all" else "", noun) if part)
    arg = rng.choice(
        ("numbers", "nums", "lst", "values", "l") if kind == "int" else ("words", "strings", "lst", "items")
    )
    item = type(values).__name__
    result = {"Optional": f"Optional[{item}]", "List": f"List[{item}]", "pairs": f"List[Tuple[{item}, {item}]]"}.get(
        out, out
    )
    typed = rng.random() < 0.7
    head = f"def {name}({arg}: List[{kind}]) -> {result}:" if typed else f"def {name}({arg}):"
    imports = (
        "from typing import " + ", ".join(n for n in ("List", "Optional", "Tuple") if n in head) + "\n\n\n"
        if typed
        else ""
    )
    examples = []
    for _ in range(rng.randint(1, 3)):
        n = rng.randint(0, 7)
        given = [rng.randint(-20, 40) for _ in range(n)] if kind == "int" else rng.sample(RULES["list_items"], n)
        made = end([change(v) for v in given if keep(v)])
        form = rng.choice((">>> {f}({g})\n    {r}", ">>> {f}({g})\n    {r}", "{f}({g}) == {r}", "{f}({g}) => {r}"))
        examples.append(form.format(f=name, g=repr(given), r=repr(made)))
    quotes = rng.choice(('"""', '"""', "'''"))
    body = "\n    ".join([e_text.format(what=what), *(["Examples:"] if rng.random() < 0.2 else []), *examples])
    return f"{imports}\n{head}\n    {quotes}{rng.choice(('', ' ', chr(10) + '    '))}{body}\n    {quotes}\n".lstrip(
        "\n"
    )


def _single(rng: random.Random) -> str:
    signature, text, examples = rng.choice(RULES["functions"]).split("|")
    name = signature.partition("(")[0]
    lines = []
    for example in examples.split(" ") if "[" not in examples and "'" not in examples else [examples]:
        given, _, made = example.rpartition("=") if example.count("=") == 1 else example.partition("=")
        lines.append(f">>> {name}({given})\n    {made}")
    if rng.random() < 0.3:
        signature = signature.partition(" ->")[0]
    n = rng.randint(0, len(lines))
    suffix = rng.choice(("", "", "_v2", "_of", "_fast", "_simple"))
    return f'def {signature.replace(name, name + suffix)}:\n    """' + "\n    ".join([text, *lines[:n]]) + '\n    """\n'


def documented_functions(source: str) -> list[tuple[ast.FunctionDef, str]]:
    """Return the functions of a file that have a docstring, and their text up to its end; none if it is no Python."""
    try:
        nodes = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and ast.get_docstring(n)]
    except SyntaxError:
        return []
    lines = source.splitlines()
    return [(node, "\n".join(lines[node.lineno - 1 : node.body[0].end_lineno])) for node in nodes]


def _library(rng: random.Random, paths: list[Path]) -> str | None:
    """Return a function of the standard library up to the end of its docstring."""
    source = rng.choice(paths).read_text(encoding="utf-8", errors="replace")
    functions = documented_functions(source)
    found = [code for node, code in functions if not node.decorator_list and code.count("\n") < 25]
    return rng.choice(found) + "\n" if found else None


def question(rng: random.Random) -> str:
    """Return one of some millions of questions: a form of one of nine kinds of work, with words put in."""
    words, forms = RULES["words"], RULES["forms"]
    form = rng.choice(forms[rng.choice(sorted(forms))])
    first, step = rng.randint(1, 9), rng.randint(2, 9)
    name, name2, name3 = rng.sample(words["name"], 3)
    chosen = {}
    for key in _KEYS:
        chosen[key] = rng.choice(words[key.rstrip("2")])
    return form.format(
        **chosen, name=name, name2=name2, name3=name3, few=rng.randint(2, 12), some=rng.randint(3, 60),
        many=rng.randint(61, 400), first=first, second=first + step, third=first + 2 * step,
        n_words=rng.choice((100, 150, 200, 300)), n_items=rng.choice(("three", "five", "seven", "ten")),
    )  # fmt: skip


_KEYS = (
    "subject", "subject2", "person", "person2", "place", "thing", "occasion", "role", "program", "language", "goods",
    "goods2", "tongue", "sentence", "facts",
)  # fmt: skip
_ASK = (
    "{code}", "{code}", "{code}", "{code}", "{code}", "Complete this function:\n\n```python\n{code}```",
    "Write the body of this Python function.\n\n{code}", "Please implement the following function:\n\n{code}",
    "```python\n{code}```",
)  # fmt: skip


def prompts(n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield prompts as lines for ``train -f``, no two of them the same."""
    rng = random.Random(seed)
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(p for p in library.glob("*.py")) + sorted(
        p for folder in ("json", "email", "http", "urllib", "collections", "concurrent", "importlib", "logging")
        for p in (library / folder).rglob("*.py")
    )  # fmt: skip
    seen: set[str] = set()
    while len(seen) < n:
        u = rng.random()
        if u < 0.5:
            code = _library(rng, paths) if u < 0.15 else _single(rng) if u < 0.2 else _made_up(rng)
            if code is None or code in seen or not 30 < len(code) < 1200:
                continue
            seen.add(code)
            if rng.random() < 0.22:
                yield {"text": code}
            else:
                yield {"messages": [{"role": "user", "content": rng.choice(_ASK).format(code=code)}]}
        else:
            text = question(rng)
            if text not in seen:
                seen.add(text)
                yield {"messages": [{"role": "user", "content": text}]}


def beginnings(folder: Path, suffixes: list[str], n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield pieces of a project's files, of 5 to 30 lines and at most 900 characters, for the target to continue."""
    rng = random.Random(seed)
    files = sorted(path for suffix in suffixes for path in folder.rglob(f"*{suffix}"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    for text in rng.choices(texts, [len(text) for text in texts], k=n):
        lines = text.splitlines()
        first = rng.randrange(len(lines))
        piece = "\n".join(lines[first : first + rng.randint(5, 30)])[:900].strip()
        if len(piece) > 80:
            yield {"text": piece}


def main() -> None:
    """Write the prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--n", type=int, default=4000, help="prompts (default: 4000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--project", type=Path, metavar="DIR", help="beginnings of this project's files instead")
    parser.add_argument("--suffix", nargs="+", default=[".cpp", ".h"], help="of those (default: .cpp .h)")
    args = parser.parse_args()
    if args.project is not None:
        found = beginnings(args.project, args.suffix, args.n, args.seed)
    else:
        found = prompts(args.n, args.seed)
    with args.output.open("w", encoding="utf-8") as f:
        for prompt in found:
            f.write(json.dumps(prompt, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
