"""Grammars in Lark: as answers and as texts within JSON they allow what their rules derive, and nothing else."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest

from accepting import accepts
from grammar_texts import GrammarTexts
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.chat import constraint_of, input_schema, schema_grammar

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
GOOD_PATCH = (
    "*** Begin Patch\n*** Update File: a/b c.py\n@@ def f():\n-    return '\"\\\\'\n+    return 2\n \n"
    "*** Add File: ü.txt\n+\n*** Delete File: x\n*** End Patch\n"
)
BAD_PATCHES = (
    "*** Begin Patch\n*** End Patch",
    GOOD_PATCH.replace("+\n*** Delete", "*** Delete"),
    GOOD_PATCH.replace("-    return", "return"),
    GOOD_PATCH.removesuffix("*** End Patch\n"),
    GOOD_PATCH + "x",
)
SUM = """
?start: sum  // a comment
?sum: product | sum "+" product -> add | sum "-" product -> sub
?product: atom
    | product "*" atom  # another one
?atom: NUMBER -> number
     | "-" atom | "(" sum ")"
%import common.NUMBER
%import common (WS_INLINE, CNAME)
%ignore WS_INLINE
"""
CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "texts": ('start: "a\\n\\x41\\u00fc\\"\\\\" "B"i', ['a\nAü"\\B', 'a\nAü"\\b'], ['a\nAü"\\', "aB"]),
    "ranges": ('start: "a".."c" "0".."1"~2..3', ["a00", "c101"], ["a0", "d00", "a0000"]),
    "braces": ('%llguidance {}\nstart: "a"{2} "b"{,1} "c"{1,}', ["aac", "aabcc"], ["ac", "aabbc", "aab"]),
    "options": ('start: ["x"] ("a" | "b")* "y"?', ["", "xabay", "y"], ["yx", "xx"]),
    "terminals": ('start: A+ B\nA.2: "a" | _C\nB: /b+/\n_C: "c" "d"~2', ["ab", "acddbb"], ["b", "acdb"]),
    "flags": ("start: /a.b/is /C./i", ["A\nBcx", "axbCx"], ["a\nbc\n", "ab"]),
    "lines": ('start: ("a"\n  | "b"\n) "c"\n\n  | "d"\n', ["ac", "bc", "d"], ["a", "dc"]),
    "left recursion": ('start: start "," item | item | start "!"\nitem: "i"', ["i", "i,i!,i!!"], ["", "i,", "ii", "!"]),
    "empty parts": ('start: (a? | b*)* c+\na: /x*/\nb: a | "y"\nc: ["z"]', ["", "xyxz", "zz", "yyy"], ["zx"]),
    "sums": (SUM, ["1+2*3", "-(1.5e3 - -2)*4", " 7 "], ["1+", "(1", "1 2", "x", ""]),
    "a rule that never ends": ('start: "a" | b\nb: "b" b', ["a"], ["b", "bb"]),
}
WRONG = {
    "": "it has no rule named start",
    "a: start": "it has no rule named start",
    'start: "a': "line 1: no part of a grammar in Lark begins with '\"a'",
    "\n\nstart: x": "line 3: there is no rule x",
    "start: X": "line 1: there is no terminal X",
    'start: a\na: b\nb: a "x" | "y"': "line 2: the rule a begins with itself by way of b",
    'start: a? start "x" | "y"\na: "a"': "line 1: the rule start begins with itself",
    'start: start "x"': "line 1: no text matches the grammar",
    "start: /a(/": "line 1: the regular expression /../ cannot be held",
    "start: /(?=a)b/": "line 1: the regular expression .* lookarounds",
    "start: /a/m": "line 1: flags 'm'",
    'start: A\nA: "a" A': "line 2: the terminal A contains itself",
    "start: A\nA: start": "line 2: a terminal cannot contain the rule start",
    "start: A\n%import python.A": "line 2: 'python.A' cannot be imported",
    "start: A\n%import .secret.A": "line 2: '.' cannot be imported",
    "start: A\n%import common.SECRET": "line 2: common has no 'SECRET'",
    'start: "x"\n\nstart: "y"': "line 3: start is defined twice: in line 1",
    'start: %json {"type": "object"}': "line 1: '%json' inside of a rule is not supported",
    "start: <|end|>": "line 1: '<' inside of a rule is not supported",
    'start{a}: "x"': "line 1: start: templates",
    '%declare A\nstart: "a"': "line 1: %declare is not supported",
    'start: "a"~5..2': "line 1: a part is repeated at least 5 and at most 2 times",
    'start: "a"~9999999': "line 1: expected at most 100000 repetitions",
    'start: "\\q"': "line 1: the text .* escape",
    'start: "\\ud800"': "line 1: the text .* no character",
    'start: ("a"\n': "line 2: expected '\\)', found its end",
    "start: A0\n" + "\n".join(f"A{i}: A{i + 1}" for i in range(2000)) + '\nA2000: "a"': "too deep",
    f"start: {'(' * 70}": "line 1: brackets are nested deeper than 60",
    f"start: {'a' * 70_000}": "expected at most 65536 characters of grammar, found 70007",
    f"start: ({'x? ' * 10_000})*\nx: 'y'".replace("'", '"'): "it takes too much work",
}


def grammar_of(text: str) -> str:
    """Return the GBNF of a grammar that a request sets for its answer."""
    constraint = constraint_of({"guided_grammar": text})
    assert constraint is not None
    return constraint.grammar


@pytest.mark.parametrize("name", CASES)
def test_texts(llm: Eagle3Llama, name: str) -> None:
    text, good, bad = CASES[name]
    grammar = grammar_of(text)
    assert [text for text in good if not accepts(llm, grammar, text)] == []
    assert [text for text in bad if accepts(llm, grammar, text)] == []
    within = schema_grammar({"type": "string", "x-lark": text})
    assert within.loosened == ()
    assert [text for text in good if not accepts(llm, within.text, json.dumps(text, ensure_ascii=False))] == []
    assert [text for text in bad if accepts(llm, within.text, json.dumps(text, ensure_ascii=False))] == []


def test_patches(llm: Eagle3Llama) -> None:
    schema, note = input_schema({"type": "grammar", "syntax": "lark", "definition": PATCH})
    assert PATCH in note
    grammar = schema_grammar({"type": "object", "properties": {"input": schema}, "required": ["input"]})
    assert grammar.loosened == ()

    def may_send(patch: str) -> bool:
        return accepts(llm, grammar.text, json.dumps({"input": patch}, ensure_ascii=False))

    assert may_send(GOOD_PATCH)
    assert [patch for patch in BAD_PATCHES if may_send(patch)] == []
    dice, texts = random.Random(1), GrammarTexts(grammar.text)
    for _ in range(50):
        lines = json.loads(texts.write(dice))["input"].split("\n")
        assert lines[0] == "*** Begin Patch"
        assert lines[-1] == "*** End Patch" or lines[-2:] == ["*** End Patch", ""]
        assert all(re.match(r"[-+ ]|@@$|@@ .|\*\*\* .", line) for line in lines if line)


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:40])
def test_what_is_no_grammar(text: str) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": text}
    with pytest.raises(ValueError, match=f"'format.definition': .*{WRONG[text]}"):
        input_schema(form)
    with pytest.raises(ValueError, match=WRONG[text]):
        input_schema({"type": "grammar", "grammar": {"syntax": "lark", "definition": text}})


def test_a_schema_that_has_one() -> None:
    """As other keywords, it is left out where it cannot be held, and that is said."""
    assert schema_grammar({"type": "string", "x-lark": 'start: "a"', "maxLength": 3}).loosened[0].reason == (
        "minLength and maxLength are not kept beside x-lark"
    )
    wrong = {"type": "object", "properties": {"a": {"type": "string", "x-lark": "start: b"}}, "required": ["a"]}
    (item,) = schema_grammar(wrong).loosened
    assert (item.property, item.reason) == ("a", "x-lark is not kept: line 1: there is no rule b")


# random grammars, against all short texts that their rules derive

N = 4


def random_grammar(dice: random.Random) -> dict[str, Any]:
    """Return rules, each as nested lists: a name, a text, or (operator, parts)."""
    names = ["start", "p", "q"]

    def part(depth: int) -> Any:
        kind = dice.randrange(8 if depth else 4)
        if kind < 3:
            return '"' + dice.choice(["a", "b", "ab"]) + '"'
        if kind == 3:
            return dice.choice(names)
        if kind in (4, 5):
            return ("*?+"[dice.randrange(3)], [part(depth - 1)])
        return (" |"[kind - 6], [part(depth - 1) for _ in range(dice.randrange(1, 4))])

    return {name: part(3) for name in names}


def written(part: Any) -> str:
    if isinstance(part, str):
        return part
    sign, parts = part
    if sign in "*?+":
        return f"({written(parts[0])}){sign}"
    return f"({f' {sign} '.join(map(written, parts))})"


def derived(rules: dict[str, Any]) -> set[str]:
    """Return the texts of up to N characters that the rules derive: the least fixed point."""
    known: dict[str, set[str]] = {name: set() for name in rules}

    def joined(a: set[str], b: set[str]) -> set[str]:
        return {x + y for x in a for y in b if len(x + y) <= N}

    def texts(part: Any) -> set[str]:
        if isinstance(part, str):
            return known[part] if part in known else {part.strip('"')}
        sign, parts = part
        found = [texts(item) for item in parts]
        if sign == "|":
            return set().union(*found)
        if sign == " ":
            all_ = {""}
            for item in found:
                all_ = joined(all_, item)
            return all_
        result = {""} if sign in "*?" else found[0]
        for _ in range(N if sign in "*+" else 1):
            result = result | joined(result, found[0]) if sign != "?" else result | found[0]
        return result

    is_new = True
    while is_new:
        new = {name: texts(part) for name, part in rules.items()}
        is_new, known = new != known, new
    return known["start"]


def test_random_grammars(llm: Eagle3Llama) -> None:
    n_held = 0
    for seed in range(150):
        rules = random_grammar(random.Random(seed))
        text = "\n".join(f"{name}: {written(part)}" for name, part in rules.items())
        expected = derived(rules)
        short = {"".join(some) for n in range(N + 1) for some in itertools.product("ab", repeat=n)}
        why = ""
        try:
            grammar = grammar_of(text)
            found = {some for some in short if accepts(llm, grammar, some)}
        except ValueError as e:
            why = str(e)
        if why:  # the last one is llama.cpp's
            known = ("begins with itself", "only the empty text", "no text matches", "in too many ways")
            assert any(reason in why for reason in known), (text, why)
        else:
            assert found == expected, text
            n_held += 1
    assert n_held > 60
