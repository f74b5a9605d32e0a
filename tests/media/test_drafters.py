"""Images before text that is drafted by MTP blocks, an assistant, a small model or a block drafter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import assistants
import dflash
from arch_keys import N_EMBD
from joint import write_both
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import DraftSettings, Media, Sampling, media_tokens
from loading import load
from mtp import write_able
from random_arch import random_tensors
from small import write_small_pair

GREEDY = Sampling(temperature=0)
CHAIN, TREE, OFF = (
    DraftSettings(mode=mode, n_max=3, tree_depth=3, tree_topk=2, tree_tokens=6) for mode in ("chain", "tree", "off")
)
Prompt = tuple[list[int], list[Media]]


@dataclass
class Kind:
    """A loaded pair, and the embeddings of its target's tokens: an image of tokens means these tokens."""

    llm: Eagle3Llama
    embd: np.ndarray

    def image(self, tokens: list[int], first: int, end: int) -> Prompt:
        """Return a text whose tokens first to end - 1 are an image."""
        embd = self.embd[tokens[first:end]]
        ids = media_tokens(str(tokens[first:end]).encode(), end - first)
        return [*tokens[:first], *ids, *tokens[end:]], [Media(first, ids, tokens[first], lambda: embd)]

    def run(self, *prompts: Prompt, draft: DraftSettings = CHAIN) -> list:
        """Return the texts after the prompts, all run at once."""
        engine = self.llm.engine
        added = [engine.add(tokens, GREEDY, max_tokens=16, draft=draft, media=media) for tokens, media in prompts]
        while not all(s.is_done for s in added):
            engine.step()
        return added


KINDS = (
    "mimo2-mtp", "both-mimo2-mtp",
    "mimo2-mtp3", "qwen35-mtp", "gemma4-a4b", "small-llama", "small-lfm2", "dflash-llama", "dflash-qwen35",
)  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    folder: Path = tmp_path_factory.mktemp("images")
    scale, more = 1.0, {}
    if request.param.startswith("both-"):
        target, draft = write_both(folder, request.param.removeprefix("both-"))
        more["draft_sources"] = ("mtp", "eagle3")
    elif request.param.endswith(("-mtp", "-mtp3")):
        target, draft = str(write_able(folder, request.param)), None
    elif request.param.startswith("gemma4"):
        target, draft = (str(path) for path in assistants.write_able(folder, request.param))
        scale = N_EMBD**0.5  # factor on tokens' rows; rows of images are used unscaled
    elif request.param.startswith("dflash-"):
        able = dflash.write_able(folder, request.param.removeprefix("dflash-"))
        target, draft = str(able.target), str(able.drafter)
    else:
        target, draft = write_small_pair(folder, "llama", request.param.removeprefix("small-"))
    options = {"n_batch": 64, "n_parallel": 2, "kv_unified": True, "draft": "chain", "draft_n_max": 3, **more}
    with load(target, draft, **options) as llm:
        yield Kind(llm, scale * random_tensors(Path(target))["token_embd.weight"].astype(np.float32))


@pytest.fixture(autouse=True)
def empty(kind: Kind) -> None:
    kind.llm.engine.clear()


@pytest.mark.parametrize("draft", [CHAIN, TREE], ids=["chain", "tree"])
def test_text_behind_an_image(kind: Kind, rng: np.random.Generator, draft: DraftSettings) -> None:
    """The text is that after the tokens in the image, with drafts and without, and some are accepted."""
    tokens = rng.integers(0, 256, 100).tolist()  # the image is longer than a batch
    (found,) = kind.run(kind.image(tokens, 5, 95), draft=draft)
    (plain,) = kind.run((tokens, []), draft=OFF)
    assert found.generated == plain.generated
    assert found.result.stats.drafts > 0
    assert found.result.stats.accepted > 0


def test_some_prompts_have_images(kind: Kind, rng: np.random.Generator) -> None:
    tokens = rng.integers(0, 256, (5, 40)).tolist()
    prompts = [kind.image(t, 7, 30) if i % 2 else (t, []) for i, t in enumerate(tokens)]
    together = [s.generated for s in kind.run(*prompts)]
    kind.llm.engine.clear()
    assert together == [kind.run((t, []), draft=OFF)[0].generated for t in tokens]


def test_prefixes_with_images_are_kept(kind: Kind, rng: np.random.Generator) -> None:
    """Another text after the same image: the image is not encoded again, and drafts continue."""
    tokens = rng.integers(0, 256, 60).tolist()
    kind.run(kind.image(tokens, 5, 50))
    other = [*tokens[:50], 7, 8, 9]
    (found,) = kind.run(kind.image(other, 5, 50))
    assert found.n_cached >= 49 or kind.llm.target.rollback_kind != "trim"
    kind.llm.engine.clear()
    assert found.generated == kind.run((other, []), draft=OFF)[0].generated
    assert found.result.stats.drafts > 0
