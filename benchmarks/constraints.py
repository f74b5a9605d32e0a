"""Our grammars beside llguidance's: which schemas and tools each takes and holds, and what a token costs.

    pip install llguidance hypothesis jsonschema
    python benchmarks/constraints.py schemas [--folder FOLDER_OF_SCHEMAS]
    python benchmarks/constraints.py tools
    python benchmarks/constraints.py costs -m MODEL

`schemas`: random ones of the tests, or those of a folder; each side writes texts, jsonschema judges them, and the other
side is asked whether it takes the valid ones. `tools`: the grammars of two required tools for llama.cpp's templates,
through llguidance's `gbnf_to_lark`. `costs`: on the model's vocabulary, which alone is loaded.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import llguidance
import numpy as np
from llguidance.gbnf_to_lark import gbnf_to_lark
from llguidance.llamacpp import lltokenizer_from_vocab

from llama_cpp_eagle3._core import GrammarLookahead, TokenTree, grammar_sampler, sampler_accept
from llama_cpp_eagle3.chat import ChatTemplates, schema_grammar
from llama_cpp_eagle3.models import bundled_pair

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import any_schemas
import chat_cases
import random_schemas
from grammar_texts import GrammarTexts

N_TEXTS = 3
N_DRAFTED = 8
PRODUCT = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "price_in_cents": {"type": "integer", "minimum": 0},
        "currency": {"enum": ["EUR", "USD"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "in_stock": {"type": "boolean"},
        "released": {"type": "string", "format": "date"},
    },
    "required": ["name", "price_in_cents", "currency", "tags", "sku", "in_stock", "released"],
    "additionalProperties": False,
}
ANSWER = {
    "name": "Garden chair of acacia wood, foldable",
    "price_in_cents": 12900,
    "currency": "EUR",
    "tags": ["garden", "wood", "outdoor"],
    "sku": "GCA-0042",
    "in_stock": True,
    "released": "2024-05-17",
}
EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Edit a file",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "pattern": "^[a-z/]{1,12}$"},
                "lines": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["path", "lines"],
        },
    },
}


@lib.llama_log_callback
def quiet(level: int, text: bytes, data: Any) -> None:
    """Say nothing of what llama.cpp logs."""


def load_vocab(path: Path) -> Any:
    """Load a model's vocabulary alone."""
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    params = lib.llama_model_default_params()
    params.vocab_only = True
    return lib.llama_model_get_vocab(lib.llama_model_load_from_file(str(path).encode(), params))


def tokenize(vocab: Any, text: str) -> list[int]:
    """Return a text's tokens."""
    data = text.encode()
    tokens = (lib.llama_token * (len(data) + 8))()
    return list(tokens[: lib.llama_tokenize(vocab, data, len(data), tokens, len(tokens), False, False)])


@cache
def token_tree(vocab: int) -> TokenTree:
    """The tokens of a vocabulary, read once."""
    return TokenTree(vocab)


class Ours:
    """llama.cpp's grammar, from GBNF."""

    def __init__(self, vocab: Any, grammar: str, root: str = "root"):
        self.vocab = vocab
        self.address = grammar_sampler(token_tree(ctypes.cast(vocab, ctypes.c_void_p).value or 0), grammar, root)
        self.pointer = ctypes.cast(self.address, lib.llama_sampler_p_ctypes)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            lib.llama_sampler_free(self.pointer)

    def takes(self, text: str) -> bool:
        """Whether it allows a whole text."""
        tokens = [*tokenize(self.vocab, text), lib.llama_vocab_eos(self.vocab)]
        lookahead = GrammarLookahead(self.address, redraws=False)
        return all(lookahead.allowed(tokens[:i], [token])[0] for i, token in enumerate(tokens))


class Letters:
    """A tokenizer whose tokens are bytes."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class Theirs:
    """llguidance, whose tokens are bytes."""

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Letters()), n_vocab=257, slices=[])

    def __init__(self, grammar: str):
        self.matcher = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
        self.error = self.matcher.get_error() if self.matcher.is_error() else ""

    def takes(self, text: str) -> bool:
        """Whether it allows a whole text."""
        matcher, data = self.matcher.deep_copy(), list(text.encode())
        return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()

    def write(self, dice: random.Random, n: int = 400) -> str | None:
        """Return a random text, which closes what is open after n bytes; None if it has no end then either."""
        matcher, text = self.matcher.deep_copy(), bytearray()
        while len(text) < 8 * n:
            mask = matcher.compute_bitmask()
            allowed = [i for i in range(256) if mask[i // 8] >> i % 8 & 1]
            if mask[32] & 1 and (not allowed or dice.random() < 0.3 or len(text) > n):
                return text.decode(errors="replace")
            liked = [i for i in allowed if i in (b'"]}' if len(text) > n else b'abcx019 -.:/,]}"{[')]
            token = dice.choice(liked if liked and dice.random() < 0.75 else allowed) if allowed else -1
            if token < 0 or not matcher.consume_token(token):
                return None
            text.append(token)
        return None


def schemas(folder: Path | None, n: int) -> Iterator[tuple[str, Any]]:
    """Yield schemas with their names."""
    if folder is not None:
        for path in sorted(folder.rglob("*.json"))[:n]:
            yield path.name, json.loads(path.read_text(encoding="utf-8"))
        return
    from hypothesis import HealthCheck, Phase, given, seed, settings

    for i in range(n):
        yield f"random {i}", random_schemas.document(random.Random(i))
    found: list[Any] = []

    @settings(
        max_examples=n,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @seed(1)
    @given(any_schemas.documents())
    def collect(schema: Any) -> None:
        found.append(schema)

    collect()
    yield from ((f"any {i}", schema) for i, schema in enumerate(found))


def from_schema(schema: Any, lenient: bool) -> Theirs:
    """Return llguidance's matcher of a schema."""
    whole = schema if isinstance(schema, dict) else {"anyOf": [schema]}
    return Theirs(llguidance.LLMatcher.grammar_from_json_schema(whole, overrides={"lenient": lenient}))


def compare_schemas(args: argparse.Namespace) -> None:
    """Print how many schemas each side takes, and what is wrong with its texts."""
    vocab, tally = load_vocab(args.model), Counter[str]()
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for name, schema in schemas(args.folder, args.n):
        dice = random.Random(name)
        begin, grammar, ours = time.perf_counter(), None, None
        try:
            grammar = schema_grammar(schema)
            ours = Ours(vocab, grammar.text)
        except ValueError:
            pass
        times["ours"].append(time.perf_counter() - begin)
        tally[
            "ours: refused" if ours is None else "ours: some said" if grammar and grammar.loosened else "ours: all"
        ] += 1
        begin = time.perf_counter()
        theirs = from_schema(schema, lenient=False)
        times["theirs"].append(time.perf_counter() - begin)
        is_strict = not theirs.error
        theirs = theirs if is_strict else from_schema(schema, lenient=True)
        tally["theirs: all" if is_strict else "theirs: refused" if theirs.error else "theirs: lenient"] += 1
        texts = list[str]()
        if ours is not None and grammar is not None:
            writer = GrammarTexts(grammar.text)
            for text in (writer.write(dice) for _ in range(N_TEXTS)):
                wrong = any_schemas.unsaid(schema, json.loads(text), ())
                said = not any_schemas.unsaid(schema, json.loads(text), grammar.loosened)
                tally["ours: wrong texts, said" if wrong and said else "ours: texts"] += 1
                texts += [] if wrong else [text]
        if not theirs.error:
            for text in filter(None, (theirs.write(dice) for _ in range(N_TEXTS))):
                wrong = any_schemas.unsaid(schema, json.loads(text), ())
                word = "strictly" if is_strict else "lenient"
                tally[f"theirs: wrong texts, taken {word}" if wrong else "theirs: texts"] += 1
                texts += [] if wrong else [text]
        for text in {json.dumps(json.loads(text), ensure_ascii=False) for text in texts}:
            tally["valid texts"] += 1
            tally["valid texts that ours takes"] += ours is not None and ours.takes(text)
            tally["valid texts that theirs takes"] += not theirs.error and theirs.takes(text)
    for key in sorted(tally):
        print(f"{key}: {tally[key]}")
    for side, taken in times.items():
        ordered = sorted(taken)
        print(f"compile, {side}: {figures(ordered, 1e3)} ms")


def compare_tools(args: argparse.Namespace) -> None:
    """Print for how many templates' grammars of tools both sides allow the same."""
    vocab, tally = load_vocab(args.model), Counter[str]()
    for path in chat_cases.templates():
        templates = ChatTemplates(template=path.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>")
        try:
            params = templates.apply(
                [{"role": "user", "content": "x"}], tools=[chat_cases.WEATHER, EDIT], tool_choice="required"
            )
        except ValueError:
            continue
        tally["grammars"] += 1
        try:
            lark = gbnf_to_lark(params.grammar)
        except Exception:
            tally["not converted"] += 1
            continue
        tally["compile as they are"] += not Theirs(lark).error
        theirs = Theirs(re.sub(r"\\(?:u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8}))", r"\\u{\1\2}", lark))
        if theirs.error:
            tally["do not compile"] += 1
            continue
        ours, writer, dice = (
            Ours(vocab, params.grammar, params.grammar_root),
            GrammarTexts(params.grammar),
            random.Random(1),
        )
        texts = [writer.write(dice) for _ in range(N_TEXTS)]
        refused = sum(not theirs.takes(text) for text in texts)
        other = [text for text in (theirs.write(dice, 120) for _ in range(N_TEXTS)) if text is not None]
        refused_by_ours = sum(not ours.takes(text) for text in other)
        tally["texts of ours"] += len(texts)
        tally["texts of ours that theirs refuses"] += refused
        tally["texts of theirs"] += len(other)
        tally["texts of theirs that ours refuses"] += refused_by_ours
        if refused or refused_by_ours:
            tally["grammars that differ"] += 1
            print("differs:", path.name)
    for key in tally:
        print(f"{key}: {tally[key]}")


def clock(times: list[float], function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, and append its seconds of CPU time, which depend less on what else runs."""
    begin = time.thread_time()
    result = function(*args)
    times.append(time.thread_time() - begin)
    return result


def figures(times: list[float], scale: float) -> str:
    """Return the median, the 99th percentile and the most."""
    ordered = sorted(times)
    chosen = (statistics.median(ordered), ordered[99 * (len(ordered) - 1) // 100], ordered[-1])
    return ", ".join(f"{scale * x:.1f}" for x in chosen)


def compare_costs(args: argparse.Namespace) -> None:
    """Print what a token of an answer costs: median, 99th percentile, most."""
    vocab = load_vocab(args.model)
    n_vocab = lib.llama_vocab_n_tokens(vocab)
    spent: dict[str, list[float]] = {}
    tokenizer = clock(spent.setdefault("theirs: the tokenizer, once", []), lltokenizer_from_vocab, vocab)
    tokens = tokenize(vocab, json.dumps(ANSWER, indent=2))
    source = llguidance.LLMatcher.grammar_from_json_schema(PRODUCT)
    matcher = clock(spent.setdefault("theirs: compile", []), lambda: llguidance.LLMatcher(tokenizer, source))
    mask = np.zeros((n_vocab + 31) // 32, dtype=np.int32)
    clock(spent.setdefault("ours: the tree of tokens, once", []), token_tree, ctypes.cast(vocab, ctypes.c_void_p).value)
    ours = clock(spent.setdefault("ours: compile", []), lambda: Ours(vocab, schema_grammar(PRODUCT).text))
    candidates = (lib.llama_token_data * n_vocab)()
    array = np.frombuffer(candidates, dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
    current = lib.llama_token_data_array(candidates, n_vocab, -1, False)

    def look_ahead(drafted: list[int]) -> None:
        lookahead = GrammarLookahead(ours.address, redraws=True)
        for i, token in enumerate(drafted):
            lookahead.allowed(drafted[:i], [token])

    for i, token in enumerate(tokens):
        drafted = tokens[i : i + N_DRAFTED]
        array["id"], array["logit"] = np.arange(n_vocab), 0.0
        clock(
            spent.setdefault("ours: the whole vocabulary", []),
            lib.llama_sampler_apply,
            ours.pointer,
            ctypes.byref(current),
        )
        clock(spent.setdefault("ours: the drawn token", []), look_ahead, [token])
        clock(spent.setdefault(f"ours: {N_DRAFTED} drafted tokens", []), look_ahead, drafted)
        clock(spent.setdefault("ours: accept", []), sampler_accept, ours.address, token)
        clock(
            spent.setdefault("theirs: the whole vocabulary", []),
            *(matcher.unsafe_compute_mask_ptr, mask.ctypes.data, mask.nbytes),
        )
        clock(spent.setdefault(f"theirs: {N_DRAFTED} drafted tokens", []), matcher.validate_tokens, drafted)
        clock(spent.setdefault("theirs: accept", []), matcher.consume_token, token)
    print(f"{len(tokens)} tokens of {n_vocab}; microseconds: median, 99th percentile, most")
    for name in sorted(spent):
        print(f"{name}: {figures(spent[name], 1e6)}")


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("schemas", "tools", "costs"))
    parser.add_argument("-m", "--model", type=Path, default=bundled_pair()[0], help="its vocabulary is used")
    parser.add_argument("--folder", type=Path, help="of JSON schemas")
    parser.add_argument("-n", type=int, default=160, help="schemas of each kind")
    args = parser.parse_args()
    {"schemas": compare_schemas, "tools": compare_tools, "costs": compare_costs}[args.part](args)


if __name__ == "__main__":
    main()
