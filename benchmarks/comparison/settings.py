"""Ways of drafting to compare: those of `bench`, trees, and the policy with one drafter alone."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.cli.bench import numbers
from llama_cpp_eagle3.draft.kinds import NGRAM, kind_of

_KINDS = ("plain", "chain", "auto", "head", "text", "tree")
_AUTO = ("auto", "head", "text")


@dataclass(frozen=True)
class Setting:
    """The way in which one side of a comparison drafts."""

    kind: str
    """plain, chain, auto, head, text or tree, where head and text are auto with that drafter alone."""
    n_max: int = 0
    """Length of a chain; for auto the longest path, 0 = the default."""
    depth: int = 0
    top_k: int = 0
    n_tokens: int = 0

    @property
    def name(self) -> str:
        """A short and unique name, which `parse` reads."""
        if self.kind == "tree":
            return f"tree {self.depth}x{self.top_k}:{self.n_tokens}"
        return f"{self.kind} {self.n_max}" if self.n_max else self.kind

    @property
    def title(self) -> str:
        """The name in tables."""
        titles = {"head": "auto, head alone", "text": "auto, text alone"}
        return self.name.replace(self.kind, titles.get(self.kind, self.kind), 1)

    @classmethod
    def parse(cls, name: str) -> Setting:
        """Make a setting from its name.

        Raises:
            ValueError: there is no setting of this name.
        """
        tree = re.fullmatch(r"tree (\d+)x(\d+):(\d+)", name)
        if tree:
            return cls("tree", 0, *(int(n) for n in tree.groups()))
        kind, _, n_max = name.partition(" ")
        if kind not in _KINDS or kind == "tree" or (n_max and not n_max.isdecimal()):
            raise ValueError(f"expected plain, auto, head, text, 'chain 3' or 'tree 4x3:8', found {name!r}")
        return cls(kind, int(n_max or 0))

    def _sources(self, sources: Sequence[str]) -> tuple[str, ...]:
        """Return those of `sources` that this setting may ask."""
        if self.kind == "text":
            return (NGRAM,)
        return tuple(s for s in sources if s != NGRAM or self.kind != "head")

    def load_options(self, sources: Sequence[str]) -> dict[str, object]:
        """Return arguments of `Eagle3Llama` that make room for this setting. sources: as `draft_sources`."""
        if self.kind == "tree":
            trees = {"depth": self.depth, "topk": self.top_k, "tokens": self.n_tokens}
            options: dict[str, object] = {"draft": "tree", **{f"draft_tree_{k}": value for k, value in trees.items()}}
            return {**options, "draft_sources": self._sources(sources)}
        options = {"draft": "auto" if self.is_auto else self.kind, "draft_sources": self._sources(sources)}
        return {**options, "draft_n_max": self.n_max} if self.n_max else options

    @property
    def is_auto(self) -> bool:
        """Whether the policy decides."""
        return self.kind in _AUTO

    def apply(self, llm: Eagle3Llama, sources: Sequence[str]) -> None:
        """Set an engine's drafting to this setting. sources: as `draft_sources`."""
        if self.kind == "plain":
            return
        llm.draft = "auto" if self.is_auto else self.kind
        if self.is_auto:
            llm.draft_sources = self._sources(sources)
        if self.kind == "tree":
            llm.draft_tree_depth, llm.draft_tree_topk, llm.draft_tree_tokens = self.depth, self.top_k, self.n_tokens
        elif self.n_max:
            llm.draft_n_max = self.n_max
        elif llm.draft_model_path is not None:  # so that drafts are not as long as the chains of another side
            llm.draft_n_max = kind_of(llm.draft_model_path).n_max_auto


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the settings, besides those of `bench`."""
    group = parser.add_argument_group("more to compare")
    group.add_argument(
        "--source",
        action="append",
        choices=("head", "text"),
        default=[],
        help='also draft="auto" with this source alone',
    )
    for flag, what in (
        ("--tree-depth", "levels of a tree, as SGLang's steps"),
        ("--tree-topk", "successors looked at after a node, as SGLang's topk"),
        ("--tree-tokens", "drafted tokens that are verified, as SGLang's draft tokens"),
    ):
        group.add_argument(flag, type=numbers, default=[], metavar="N,...", help=f"{what}; several lists are zipped")


def from_arguments(args: argparse.Namespace) -> list[Setting]:
    """Return the settings that the flags name.

    Raises:
        ValueError: the lists of trees differ in length, or there is nothing to run.
    """
    trees = args.tree_depth, args.tree_topk, args.tree_tokens
    if len({len(values) for values in trees}) != 1:
        raise ValueError("give as many --tree-depth as --tree-topk and --tree-tokens")
    found = [] if args.no_plain else [Setting("plain")]
    found += [] if args.no_auto else [Setting("auto")]
    found += [Setting(source) for source in args.source]
    found += [Setting("chain", n) for n in args.n_max]
    found += [Setting("tree", 0, *sizes) for sizes in zip(*trees, strict=True)]
    if not found:
        raise ValueError("nothing to run: every side was left out")
    return found


def load_largest(
    settings: Sequence[Setting], sources: Sequence[str], load: Callable[..., Eagle3Llama]
) -> Eagle3Llama | None:
    """Load one engine for all sides that draft, with room for the largest of them; None if no side drafts.

    load: makes an engine with the given options of `Eagle3Llama`.
    """
    sides = [s for s in settings if s.kind != "plain"]
    if not sides:
        return None
    largest = max(sides, key=lambda s: (s.kind == "tree", s.n_tokens, s.kind == "auto", s.is_auto, s.n_max))
    options = largest.load_options(sources)
    if largest.kind == "tree":  # a recurrent target keeps as many states as the longest path has tokens
        depth = max(max(s.depth, s.n_max) for s in sides)
        options |= {"draft_tree_depth": depth, "draft_tree_tokens": max(largest.n_tokens, depth)}
    llm = load(**options)
    if any(s.is_auto for s in sides):
        llm.calibrate()  # calibrate while the context is empty; the type chosen for the head then holds for all sides
    return llm
