"""Heads whose rotation has sections (M-RoPE) have two-dimensional positions after an image."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from checkpoints import FAMILIES, write_family
from drafting import draft_chain, make_drafter, rel_error
from llama_cpp_eagle3 import Eagle3Llama, ModelFileError
from llama_cpp_eagle3_heads.convert import convert
from reference import ReferenceHead
from tiny import Head, write_head, write_target
from vlm_pairs import AFTER, BEFORE, load_vlm

N_BEFORE, N_ROWS, N_AFTER = 5, 12, 4
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def places(pos_0: int = N_BEFORE, width: int = 4) -> tuple[np.ndarray, int]:
    """Return positions of an image of 3 x 4 rows, int32 (4, 12), and how many positions it takes."""
    i = np.arange(N_ROWS)
    t = np.full(N_ROWS, pos_0)
    return np.array([t, pos_0 + i // width, pos_0 + i % width, t], dtype=np.intc), width


def all_positions(n: int = 64) -> np.ndarray:
    """Return the positions of all slots: text, the image, and text that continues after it."""
    image, n_pos = places()
    before = np.tile(np.arange(N_BEFORE), (4, 1))
    after = np.tile(N_BEFORE + n_pos + np.arange(n - N_BEFORE - N_ROWS), (4, 1))
    return np.concatenate([before, image, after], axis=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("sections") / "target.gguf")


@pytest.mark.parametrize(
    "variant",
    [
        {"rope_sections": (2, 3, 3, 0)},
        {"rope_sections": (3, 3, 2, 0), "rope_interleaved": True},
        {"rope_sections": (1, 2, 1, 0), "n_rot": 8, "n_layer": 2, "qk_norm": True},
        {"rope_sections": (2, 3, 3, 0), "rope_scaling": YARN},
        {"rope_sections": (3, 3, 2, 0), "rope_interleaved": True, "rope_scaling": LINEAR},
    ],
)
@pytest.mark.parametrize("n_unroll", [1, 3])
def test_draft_behind_an_image(tmp_path, target, model_address, rng, variant, n_unroll):
    head = write_head(tmp_path / "head.gguf", target, **variant)
    drafter = make_drafter(head, model_address(target.path), n_unroll=n_unroll, n_seq_max=2)
    assert drafter.n_pos_per_row == 4
    reference = ReferenceHead(head)
    reference.positions = all_positions()
    n = N_BEFORE + N_ROWS + N_AFTER
    rows = rng.normal(0, 2, (n, head.n_embd_inp)).astype(np.float32)
    tokens = rng.integers(0, 300, n).tolist()

    def feed(first, last):
        drafter.process_rows(rows[first:last], tokens[first:last], first)

    feed(0, N_BEFORE)
    pos, n_pos = places()
    drafter.add_image(N_BEFORE, pos, n_pos)
    feed(N_BEFORE, N_BEFORE + 7)
    feed(N_BEFORE + 7, N_BEFORE + N_ROWS)
    feed(N_BEFORE + N_ROWS, n)
    reference.process(rows, tokens, 0)
    want = reference.propose(9, 4)
    assert draft_chain(drafter, 9, 4) == want.ids
    assert rel_error(drafter.draft_logits, want.logits[-1]) < 1e-4

    state = drafter.state_get()
    drafter.state_set(state, 1)
    assert draft_chain(drafter, 9, 4, seq_id=1) == want.ids
    assert drafter.copy(0, 1, n - 1) == n - 1 or drafter.n_past(1) <= n - 1
    at = drafter.n_past(1)
    drafter.process_rows(rows[at:], tokens[at:], at, seq_id=1)
    assert draft_chain(drafter, 9, 4, seq_id=1) == want.ids

    # without the image's positions it is another head
    reference.positions = None
    assert rel_error(drafter.draft_logits, reference.propose(9, 4).logits[-1]) > 1e-2
    # gone back before the image it is text
    drafter.truncate(N_BEFORE)
    at = drafter.n_past()
    feed(at, n)
    want = reference.propose(9, 4)
    assert draft_chain(drafter, 9, 4) == want.ids
    assert rel_error(drafter.draft_logits, want.logits[-1]) < 1e-4


def test_behind_a_real_image(tmp_path):
    vlm = load_vlm("qwen25vl")
    head = write_head(tmp_path / "head.gguf", vlm.target, rope_sections=(2, 3, 3, 0))
    with Eagle3Llama(
        vlm.path, head.path, mmproj_path=vlm.mmproj, draft="chain", n_ctx=256, n_threads=1, type_k="f32", type_v="f32",
        draft_type_k="f32", draft_type_v="f32", verbose=False,
    ) as llm:  # fmt: skip
        prompt = llm.projector.prompt(f"{BEFORE}{llm.projector.marker}{AFTER}", [vlm.file])
        media = prompt.media[0]
        rows = []
        for part in (prompt.tokens[: media.first], media, prompt.tokens[media.end :]):
            llm.eval_media(part) if part is media else llm.eval(part)
            rows.append(np.array(llm.features))
        reference = ReferenceHead(head)
        tokens = [t if t >= 0 else media.placeholder for t in prompt.tokens]
        reference.process(np.concatenate(rows), tokens, 0)
        image = media.positions(media.first)
        image[3] = image[0]
        before = np.tile(np.arange(media.first), (4, 1))
        after = np.tile(media.first + media.n_pos + np.arange(40), (4, 1))
        reference.positions = np.concatenate([before, image, after], axis=1)
        want = reference.propose(5, 3)
        drafter: Any = llm.drafters[0]
        assert draft_chain(drafter, 5, 3) == want.ids
        assert rel_error(drafter.draft_logits, want.logits[-1]) < 1e-2


@pytest.mark.parametrize("scaling", [None, YARN, LINEAR, LLAMA3])
def test_converted(tmp_path, target, model_address, rng, scaling):
    deep = write_target(tmp_path / "target.gguf", n_layer=8)
    family = FAMILIES["specforge_vl"]
    head = write_head(tmp_path / "unused.gguf", deep, **family.variant, rope_scaling=scaling)
    write_family(tmp_path / "checkpoint", family, head)
    if scaling is not None:
        config = json.loads((tmp_path / "checkpoint/config.json").read_text())
        config["rope_scaling"] |= scaling
        (tmp_path / "checkpoint/config.json").write_text(json.dumps(config))
    path = convert(tmp_path / "checkpoint", deep.path, tmp_path / "out.gguf", outtype="f32").path
    converted = Head(str(path), head.arch, head.variant, deep, head.weights, head.d2t)
    assert converted.arch == "eagle3"  # llama.cpp runs it too, on text
    drafter, reference = make_drafter(converted, model_address(deep.path)), ReferenceHead(converted)
    reference.positions = all_positions()
    n = N_BEFORE + N_ROWS
    rows, tokens = rng.normal(0, 2, (n, head.n_embd_inp)).astype(np.float32), rng.integers(0, 300, n).tolist()
    reference.process(rows, tokens, 0)
    drafter.process_rows(rows[:N_BEFORE], tokens[:N_BEFORE], 0)
    drafter.add_image(N_BEFORE, *places())
    drafter.process_rows(rows[N_BEFORE:], tokens[N_BEFORE:], N_BEFORE)
    want = reference.propose(9, 3)
    assert draft_chain(drafter, 9, 3) == want.ids
    assert rel_error(drafter.draft_logits, want.logits[-1]) < 1e-4
    if scaling is not None:
        unscaled = ReferenceHead(converted, rope_scaling=None)
        unscaled.positions = all_positions()
        unscaled.process(rows, tokens, 0)
        assert rel_error(drafter.draft_logits, unscaled.propose(9, 3).logits[-1]) > 1e-3


def test_sections_that_cannot_be(tmp_path, target, model_address):
    head = write_head(tmp_path / "head.gguf", target, rope_sections=(2, 3, 4, 0))
    with pytest.raises(ModelFileError, match=r"dimension_sections': expected at most four numbers with a sum of 8"):
        make_drafter(head, model_address(target.path))
    plain = write_head(tmp_path / "plain.gguf", target)
    drafter = make_drafter(plain, model_address(target.path))
    with pytest.raises(ValueError, match="positions for each row"):
        drafter.add_image(0, np.zeros((3, 3), np.intc), 3)
