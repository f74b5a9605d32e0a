"""Texts to train a head on: prompts from files or from the model itself, and the target's own answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_cpp_eagle3.chat import apply_request
from llama_cpp_eagle3.errors import Eagle3Error
from llama_cpp_eagle3.files.whole_file import naming

from .conversations import read_prompts
from .work_file import reading

if TYPE_CHECKING:
    from llama_cpp_eagle3.llama import Eagle3Llama

TEMPERATURES = (0.0, 0.7, 1.0)
"""Answers are drawn at these in turn."""

N_PROMPT_MAX = 160
"""Tokens of a user's turn that the model makes up; longer ones seldom end."""

OPENINGS = (
    ("", 8), ("Write a Python function that", 2), ("Write a function", 1),
    ("Complete this function:\n\n```python\ndef", 1),
    ("from typing import List\n\n\ndef", 2), ("def", 1), ("import", 1), ("What is", 1), ("How do I", 1), ("How can", 1),
    ("Why", 1), ("Explain", 2), ("Write a short story about", 1), ("Write an email", 1), ("Compose", 1),
    ("Pretend yourself to be", 1), ("Imagine you are", 1), ("Compare", 1), ("Summarize", 1), ("Rewrite", 1),
    ("Given the following", 1), ("Extract", 1), ("A store sells", 1), ("Solve", 1), ("If a train", 1), ("Suppose", 1),
    ("Describe", 2), ("Provide", 1), ("Give me", 1), ("Can you", 1), ("I want to", 1), ("Translate", 1), ("List", 1),
    ("What are the", 1), ("In the field of", 1), ("Design", 1), ("Create a", 1), ("Should", 1), ("Who", 1), ("When", 1),
)  # fmt: skip
"""Beginnings of a user's turn and how often each is taken: mostly none, else kinds of work that people ask for."""


@dataclass(frozen=True)
class Text:
    """A prompt and the target's own answer, as tokens."""

    id: int
    tokens: list[int]
    n_prompt: int
    temperature: float
    source: str
    """Where the prompt comes from: "file" or "model"."""

    @property
    def n_first(self) -> int:
        """The first row that predicts a token of the answer."""
        return max(0, self.n_prompt - 1)


@dataclass(frozen=True)
class Prompt:
    """Tokens for the target to continue."""

    id: int
    tokens: list[int]
    source: str


def _find_tokens(llm: Eagle3Llama, text: str) -> list[int]:
    tokens: list[int] = llm.tokenize(text.encode("utf-8"), add_bos=False, special=True)
    bos = llm.engine.vocab.bos
    return [bos, *tokens] if bos >= 0 and tokens[:1] != [bos] else tokens


class Templates:
    """Renders conversations by the model's chat template."""

    def __init__(self, llm: Eagle3Llama) -> None:
        self.llm = llm
        self.has_template = "tokenizer.chat_template" in llm.metadata

    def tokens(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> list[int]:
        """Tokens of a conversation for the assistant to continue; more: fields of a request for the template."""
        body = {**more, "messages": list(messages)}
        params = apply_request(self.llm.chat_templates, body, enable_thinking=None, has_markers=False)
        return _find_tokens(self.llm, params.prompt)

    def user_turn(self) -> str:
        """Everything before the first word of the user's first turn."""
        mark = "\u2603first words\u2603"
        body = {"messages": [{"role": "user", "content": mark}]}
        prompt = apply_request(self.llm.chat_templates, body, enable_thinking=None, has_markers=False).prompt
        before, found, _ = prompt.partition(mark)
        if not found:
            raise Eagle3Error(
                "the target's chat template does not show the user's words as they are, so that the model cannot be "
                "given the beginning of a user's turn: give prompts with -f"
            )
        return before


def file_prompts(
    llm: Eagle3Llama, paths: Iterable[Path], n_max: int, log: Callable[[str], None] = lambda text: None
) -> list[Prompt]:
    """The prompts of files, without duplicates.

    Args:
        llm: the target.
        paths: the files.
        n_max: tokens of a prompt; longer ones are left out.
        log: called with lines on what is left out.

    Raises:
        ValueError: a file cannot be read, has no prompts, or they are all the same.
    """
    templates = Templates(llm)
    found: list[list[int]] = []
    n_long, refused = 0, list[str]()
    for path in paths:
        n_before, n_refused_before = len(found), len(refused)
        for value in read_prompts(path, refused):
            try:
                tokens = _tokens_of(llm, templates, value)
            except ValueError as e:  # images, for example
                refused.append(f"'{path}': {e}")
                continue
            if len(tokens) > n_max:
                n_long += 1
            elif tokens:
                found.append(tokens)
        if len(found) == n_before:
            why = f" but {n_long} that are longer than {n_max} tokens: -c makes room for more" if n_long else ""
            if n_refused := len(refused) - n_refused_before:
                why += f" but {n_refused} that are refused: {refused[n_refused_before]}"
            raise ValueError(f"'{path}': found no prompts{why}")
    if len(found) > 1 and all(tokens == found[0] for tokens in found):
        raise ValueError(f"all {len(found)} prompts are the same: a head learns nothing from one text. Give others")
    unique = {tuple(tokens): tokens for tokens in found}
    if refused:
        log(f"{len(refused)} records are left out, or a part of them, the first one because: {refused[0]}")
    if n_long:
        log(f"{n_long} prompts are longer than {n_max} tokens and are left out: -c makes room for more")
    if len(unique) < len(found):
        log(f"{len(found) - len(unique)} prompts come twice and are left out once")
    if not templates.has_template:
        log("the target has no chat template: prompts are texts that it continues")
    return [Prompt(i, tokens, "file") for i, tokens in enumerate(unique.values())]


def _tokens_of(llm: Eagle3Llama, templates: Templates, value: dict[str, Any] | str) -> list[int]:
    if isinstance(value, str):
        return _find_tokens(llm, value)
    if templates.has_template:
        return templates.tokens(**value)
    return _find_tokens(llm, "".join(str(message.get("content", "")) for message in value["messages"]))


class SelfPrompts:
    """Prompts that the target writes itself (Magpie, arXiv 2406.08464).

    An instruct model is given its system turn and the beginning of a user's turn. A base model is given nothing but the
    beginning of a text, and goes on from the first tokens of what it wrote.
    """

    def __init__(self, llm: Eagle3Llama, n_ctx: int, seed: int, known: Sequence[Prompt] = ()) -> None:
        self.llm, self.n_ctx, self.seed = llm, n_ctx, seed
        self.templates = Templates(llm)
        self.before = self.templates.user_turn() if self.templates.has_template else ""
        if not self.before and llm.token_bos() < 0:
            raise Eagle3Error(
                "the target has neither a chat template nor a token that begins a text, so that it cannot make up "
                "prompts: give some with -f"
            )
        self.seen = {tuple(prompt.tokens) for prompt in known}

    def block(self, first_id: int, n: int, n_in_vain: int = 0) -> list[Prompt]:
        """At most n prompts: duplicates, and those that did not end or are empty, are dropped.

        n_in_vain: that were written before for the same first_id, and dropped.
        """
        first_seed = first_id + n_in_vain
        rng = random.Random(f"{self.seed}-{first_seed}")
        openings = rng.choices([o for o, _ in OPENINGS], [w for _, w in OPENINGS], k=n)
        if not self.templates.has_template:
            openings = [""] * n
        starts = [_find_tokens(self.llm, self.before + opening) or [self.llm.token_bos()] for opening in openings]
        n_room = min(N_PROMPT_MAX if self.templates.has_template else 32, self.n_ctx // 2)
        results = self.llm.generate_batch(
            starts,
            [{"seed": self.seed + first_seed + i} for i in range(n)],
            progress=True,
            max_tokens=n_room, temperature=1.0, top_p=0.95, top_k=100, min_p=0.0,
        )  # fmt: skip
        prompts: list[Prompt] = []
        for start, opening, result in zip(starts, openings, results, strict=True):
            text = (opening + result.text).strip()
            is_whole = result.finish_reason == "stop" if self.templates.has_template else len(result.tokens) > 7
            if not is_whole or len(text) < 12 or not _is_clean(text):
                continue
            if self.templates.has_template:
                tokens = self.templates.tokens([{"role": "user", "content": text}])
            else:
                tokens = start + result.tokens
            if tuple(tokens) in self.seen or len(tokens) > self.n_ctx // 2:
                continue
            self.seen.add(tuple(tokens))
            prompts.append(Prompt(first_id + len(prompts), tokens, "model"))
        return prompts


def _is_clean(text: str) -> bool:
    """Whether a text looks written: mostly printable, and not one phrase again and again."""
    if sum(c.isprintable() or c in "\n\t" for c in text) < 0.98 * len(text):
        return False
    words = text.split()
    return len(words) < 20 or len(set(words)) > len(words) // 4


class Store:
    """Prompts and texts in a folder: JSON Lines that only grow, so that an interrupted run goes on where it was."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.prompts_path, self.texts_path = folder / "prompts.jsonl", folder / "texts.jsonl"
        with reading(self.prompts_path):
            self.prompts = [Prompt(**value) for value in _read_whole_lines(self.prompts_path)]
        with reading(self.texts_path):
            self.texts = [Text(**value) for value in _read_whole_lines(self.texts_path)]
        self.n_tokens = sum(len(text.tokens) - text.n_prompt for text in self.texts)
        """Number of tokens of all answers."""

    def add_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Keep prompts."""
        _append(self.prompts_path, prompts)
        self.prompts += prompts

    def add_text(self, text: Text) -> None:
        """Keep a text."""
        _append(self.texts_path, [text])
        self.texts.append(text)
        self.n_tokens += len(text.tokens) - text.n_prompt

    def unanswered(self) -> list[Prompt]:
        """Prompts without a text."""
        done = {text.id for text in self.texts}
        return [prompt for prompt in self.prompts if prompt.id not in done]


def _append(path: Path, values: Sequence[Any]) -> None:
    with naming(path), path.open("a", encoding="utf-8") as f:
        f.writelines(json.dumps(asdict(value), separators=(",", ":")) + "\n" for value in values)


def _read_whole_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, from which a last line that was cut off is removed."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as f:
            f.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]
