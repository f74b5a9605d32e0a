"""Models of transformers with an image or a sound: our rows against its hidden states, the drafter against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from drafting import draft_chain
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3.engine import Media, Sampling, media_tokens
from reference import ReferenceHead
from tiny import write_head
from vlm_pairs import AFTER, BEFORE, load_vlm

NAMES = ["qwen25vl", "qwen3vl", "gemma3", "pixtral", "llama4", "qwen2audio"]
BOUNDARIES = (1, 2, 3)
PLACEHOLDERS = {
    "qwen25vl": "<|image_pad|>",
    "qwen3vl": "<|image_pad|>",
    "gemma3": "<image_soft_token>",
    "pixtral": "[IMG]",
    "llama4": "<|patch|>",
    "qwen2audio": "<|AUDIO|>",
}


@pytest.fixture(scope="module", params=NAMES)
def loaded(request, tmp_path_factory):
    vlm = load_vlm(request.param)
    head = write_head(tmp_path_factory.mktemp(vlm.name) / "head.gguf", vlm.target, boundaries=BOUNDARIES)
    with Eagle3Llama(
        vlm.path,
        draft_model_path=head.path,
        mmproj_path=vlm.mmproj,
        draft="chain",
        n_ctx=1024,
        n_batch=1024,
        n_threads=1,
        type_k="f32",
        type_v="f32",
        draft_type_k="f32",
        draft_type_v="f32",
        logits_all=False,
        verbose=False,
    ) as llm:
        yield vlm, head, llm


@pytest.fixture
def prompt(loaded):
    vlm, _, llm = loaded
    return llm.projector.prompt(f"{BEFORE}{llm.projector.marker}{AFTER}", [vlm.file])


def evaluate(llm, tokens, media) -> np.ndarray:
    """Return rows of a prompt's tokens, (n_tokens, n_boundaries, n_embd)."""
    llm.reset()
    llm.eval(tokens[: media.first])
    rows = [np.array(llm.features)]
    llm.eval_media(media)
    rows.append(np.array(llm.features))
    llm.eval(tokens[media.end :])
    rows.append(np.array(llm.features))
    return np.concatenate(rows)


def compare(vlm, llm, rows, tolerance) -> None:
    want = vlm.states[:, list(BOUNDARIES)]
    assert rows.shape == want.shape
    for i, b in enumerate(BOUNDARIES):
        error = np.abs(rows[:, i] - want[:, i]).max() / np.abs(want[:, i]).max()
        assert error < tolerance, f"boundary {b}"
    logits = llm.target.logits(int(llm.target.tokens.size) - 1)
    assert np.abs(logits - vlm.logits[-1]).max() / np.abs(vlm.logits[-1]).max() < 4 * tolerance


def test_rows_are_those_of_transformers(loaded, prompt):
    """The language model computes transformers' rows from the rows that its encoder gives."""
    vlm, _, llm = loaded
    made, end = prompt.media[0], len(vlm.ids) - len(prompt.tokens[prompt.media[0].end :])
    assert (made.first, [t for t in prompt.tokens if t >= 0]) == (vlm.first, [*vlm.ids[: vlm.first], *vlm.ids[end:]])
    media = Media(
        vlm.first, media_tokens(b"", end - vlm.first), made.placeholder, lambda: vlm.rows(end),
        n_pos=made.n_pos if vlm.name.startswith("qwen") else None, positions=made._positions, causal=made.causal,
    )  # fmt: skip
    tokens = [*vlm.ids[: vlm.first].tolist(), *media.tokens, *vlm.ids[end:].tolist()]
    compare(vlm, llm, evaluate(llm, tokens, media), 5e-3)


def rows_in_order(vlm, media) -> np.ndarray:
    """Return libmtmd's rows. It yields a tile of Llama 4 column by column, transformers rows of the picture."""
    media.encode()
    rows = media._rows
    if vlm.name != "llama4":
        return rows
    side = int(len(rows) ** 0.5)
    return rows.reshape(side, side, -1).swapaxes(0, 1).reshape(rows.shape)


def test_encoders_are_those_of_transformers(loaded, prompt):
    vlm, _, _ = loaded
    media = prompt.media[0]
    want = vlm.rows(media.end)
    assert np.abs(rows_in_order(vlm, media) - want).max() / np.abs(want).max() < 5e-3
    if vlm.name == "llama4":  # once llama.cpp has the right order, docs/multimodal.md must change
        assert np.abs(media._rows - want).max() / np.abs(want).max() > 0.5


def test_from_the_file_to_the_hidden_states(loaded, prompt):
    vlm, _, llm = loaded
    made = prompt.media[0]
    media = Media(
        made.first, made.tokens, made.placeholder, lambda: rows_in_order(vlm, made), n_pos=made.n_pos,
        positions=made._positions, causal=made.causal,
    ) if vlm.name == "llama4" else made  # fmt: skip
    compare(vlm, llm, evaluate(llm, prompt.tokens, media), 0.02)


def test_placeholders(loaded):
    vlm, _, llm = loaded
    placeholder = llm.projector.placeholders[vlm.media.ndim == 1][0]
    assert llm.detokenize([placeholder], special=True).decode() == PLACEHOLDERS[vlm.name]


def test_draft_is_the_references(loaded, prompt):
    _, head, llm = loaded
    media = prompt.media[0]
    rows = evaluate(llm, prompt.tokens, media)
    reference = ReferenceHead(head)
    tokens = prompt.tokens.copy()
    tokens[media.first : media.end] = [media.placeholder] * len(media.tokens)
    reference.process(rows, tokens, 0)
    for id_last in (5, 99):
        want = reference.propose(id_last, 3)
        got = draft_chain(llm.drafters[0], id_last, 3)
        assert got == want.ids
        error = np.abs(llm.drafters[0].draft_logits - want.logits[-1]).max() / np.abs(want.logits[-1]).max()
        assert error < 1e-2


def test_text_is_that_without_a_head(loaded, prompt):
    _, _, llm = loaded
    texts = []
    for n_max in (0, 3):
        sequence = llm.engine.add(
            prompt.tokens, Sampling(temperature=0), max_tokens=20, media=prompt.media, cache_prompt=False,
            draft=llm.draft_settings.__class__(mode="chain", n_max=n_max),
        )  # fmt: skip
        while not sequence.is_done:
            llm.engine.step()
        assert sequence.result.error is None
        texts.append(sequence.generated)
    assert texts[0] == texts[1]
    assert sequence.result.stats.drafts > 0
