"""Prompts with images in the engine: batches, cached prefixes, states, and errors of single sequences."""

from __future__ import annotations

import numpy as np
import pytest

from llama_cpp_eagle3 import ContextFullError, Eagle3Llama, _core
from llama_cpp_eagle3.engine import DraftSettings, Media, Sampling, media_tokens
from tiny import write_head, write_target

GREEDY = Sampling(temperature=0)
CHAIN = DraftSettings(mode="chain", n_max=3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    target = write_target(folder / "target.gguf", n_layer=4)
    return target, write_head(folder / "head.gguf", target)


@pytest.fixture(scope="module")
def llm(pair):
    target, head = pair
    with Eagle3Llama(
        target.path, head.path, n_ctx=512, n_batch=64, n_parallel=2, kv_unified=True, draft="chain", n_threads=1,
        type_k="f32", type_v="f32", verbose=False,
    ) as llm:  # fmt: skip
        yield llm


@pytest.fixture(autouse=True)
def empty(llm):
    llm.engine.clear()


class Pictures:
    """Images of tokens: a model reads the same in such an image as in the text."""

    def __init__(self, target):
        self.embd = target.weights["model.embed_tokens.weight"].astype(np.float32)
        self.n_encoded = 0

    def media(self, first: int, tokens: list[int], **more) -> Media:
        def encode():
            self.n_encoded += 1
            return self.embd[tokens]

        return Media(first, media_tokens(str(tokens).encode(), len(tokens)), tokens[0], encode, **more)

    def prompt(self, before: list[int], tokens: list[int], after: list[int], **more):
        media = self.media(len(before), tokens, **more)
        return [*before, *media.tokens, *after], [media]


@pytest.fixture
def pictures(pair):
    return Pictures(pair[0])


def run(llm, *prompts, n=12, draft=CHAIN, **more):
    """Return the texts after the prompts, all run at once."""
    added = [
        llm.engine.add(tokens, GREEDY, max_tokens=n, draft=draft, media=media, **more) for tokens, media in prompts
    ]
    while not all(s.is_done for s in added):
        llm.engine.step()
    return added


def texts(sequences):
    return [s.generated for s in sequences]


def test_an_image_says_what_its_tokens_say(llm, pictures, rng):
    tokens = rng.integers(0, 300, 100).tolist()  # the image is longer than a batch
    image = pictures.prompt(tokens[:5], tokens[5:95], tokens[95:])
    got = run(llm, image)
    assert texts(got) == texts(run(llm, (tokens, [])))
    assert got[0].result.stats.drafts > 0
    assert pictures.n_encoded == 1


def test_some_prompts_of_a_batch_have_images(llm, pictures, rng):
    tokens = rng.integers(0, 300, (5, 40)).tolist()
    prompts = [pictures.prompt(t[:7], t[7:30], t[30:]) if i % 2 else (t, []) for i, t in enumerate(tokens)]
    together = texts(run(llm, *prompts))
    llm.engine.clear()
    assert together == [texts(run(llm, p, draft=DraftSettings(mode="off")))[0] for p in prompts]
    assert together == [texts(run(llm, (t, []), cache_prompt=False))[0] for t in tokens]


def test_equal_images_are_not_encoded_again(llm, pictures, rng):
    before, a, b = (rng.integers(0, 300, n).tolist() for n in (40, 20, 20))
    first = run(llm, pictures.prompt(before, a, [1, 2, 3]))[0]
    again = run(llm, pictures.prompt(before, a, [4, 5]))[0]  # the text after the image is different
    assert pictures.n_encoded == 1
    assert (first.n_cached, again.n_cached) == (0, 60)
    other = run(llm, pictures.prompt(before, b, [1, 2, 3]))[0]
    assert (pictures.n_encoded, other.n_cached) == (2, 39)  # the drafter processes the row before again
    llm.engine.clear()
    assert texts([again]) == texts(run(llm, ([*before, *a, 4, 5], [])))


def test_kept_prefixes_travel_with_their_images(llm, pictures, rng):
    tokens = rng.integers(0, 300, 60).tolist()
    prompt = pictures.prompt(tokens[:5], tokens[5:40], tokens[40:])
    want = texts(run(llm, prompt, seq_id=0))
    stored = llm.engine.store_prefix(0)
    llm.engine.clear()
    llm.engine.restore_prefix(1, stored)
    got = run(llm, prompt, seq_id=1)
    assert texts(got) == want
    assert pictures.n_encoded == 1
    assert got[0].n_cached == 59


def test_states_hold_images(llm, pictures, rng):
    tokens = rng.integers(0, 300, 40).tolist()
    llm.reset()
    llm.eval(tokens[:5])
    llm.eval_media(pictures.media(5, tokens[5:30]))
    llm.eval(tokens[30:])
    state = llm.save_state()
    prompt = llm.input_ids[: llm.n_tokens].tolist()
    want = [t for t, _ in zip(llm.generate(prompt, temp=0), range(8), strict=False)]
    llm.reset()
    llm.load_state(state)
    assert llm.target.spans() == [(5, 25, 25)]
    assert [t for t, _ in zip(llm.generate(prompt, temp=0), range(8), strict=False)] == want
    assert pictures.n_encoded == 1
    assert llm.last_stats.drafts > 0


def test_an_image_that_is_gone_is_told(llm, pictures, rng):
    tokens = rng.integers(0, 300, 41)[1:].tolist()
    prompt, _ = pictures.prompt(tokens[:5], tokens[5:30], tokens[30:])
    with pytest.raises(ValueError, match="an image that is not in memory any more"):
        next(llm.generate(prompt, temp=0))
    with pytest.raises(ValueError, match="expected tokens in"):
        llm.engine.add(prompt, GREEDY)


def test_errors_belong_to_their_sequence(llm, pictures, rng):
    tokens = rng.integers(0, 300, 40).tolist()
    broken = pictures.prompt(tokens[:5], tokens[5:30], tokens[30:])
    broken[1][0]._encode = lambda: 1 / 0
    got = run(llm, broken, (tokens, []))
    assert isinstance(got[0].result.error, ZeroDivisionError)
    assert got[1].result.error is None
    assert texts(got[1:]) == texts(run(llm, (tokens, []), cache_prompt=False))


def test_what_does_not_fit_is_not_encoded(llm, pictures, rng):
    tokens = rng.integers(0, 300, 600).tolist()
    with pytest.raises(ContextFullError):
        run(llm, pictures.prompt([1], tokens, [2]))
    with pytest.raises(ValueError, match=r"has to fit into n_batch and n_ubatch, 64"):
        run(llm, pictures.prompt([1], tokens[:100], [2], causal=False))
    with pytest.raises(ValueError, match="expected the tokens of an image at 0 to 2"):
        run(llm, ([1, -5, 2], [pictures.media(0, [1, 2, 3])]))
    with pytest.raises(ValueError, match="an image for each negative token"):
        run(llm, ([*media_tokens(b"[1]", 1), -5], [pictures.media(0, [1])]))
    assert pictures.n_encoded == 0


def test_texts_are_not_drafted_from_images():
    """If the text before an image occurs again, it was followed by an image, not by text to draft."""
    words = list(range(20, 30))
    image = media_tokens(b"x", 8)
    store = _core.NgramStore()
    store.add([*words, 77, *image, *words])
    for text in (_core.NgramDrafter(), _core.NgramDrafter(store=store)):
        text.update([*words, 77, *image, *words])
        assert [token for _, token, _, _ in text.propose(8, 8)] == [77]
        text.update([*words, *image, *words])
        assert all(token >= 0 for _, token, _, _ in text.propose(8, 8))
