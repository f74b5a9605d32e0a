"""The drafter's K/V cache is as large as its contents; sequences that move while it grows draft the same."""

import os
import resource
import sys

import numpy as np
import pytest

from drafting import SideBySide, draft_chain, draft_chains, make_drafter, rel_error
from head_variants import VARIANTS
from llama_cpp_eagle3.errors import Eagle3Error
from reference import ReferenceHead
from tiny import write_head
from tolerance import tolerance

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

HEADS = ["plain", "sliding_window", "layers_2", "layers_2_window", "everything", "kimi", "p_eagle_norm_before_fc"]
N_PAD = 256  # slots of which a cache is a multiple
N_SCRATCH = 128  # slots after the last one, for drafted nodes


class Texts:
    """Random rows of several sequences, given to a drafter and kept to give them to others."""

    def __init__(self, drafter, head, n_seq, **options):
        self.drafter, self.head, self.options = drafter, head, options
        self.rng = np.random.default_rng(1234)
        self.rows = [np.zeros((0, head.n_embd_inp), np.float32) for _ in range(n_seq)]
        self.tokens = [[] for _ in range(n_seq)]

    def process(self, seq_id, n):
        rows = self.rng.normal(0.0, 2.0, (n, self.head.n_embd_inp)).astype(np.float32)
        tokens = self.rng.integers(0, self.head.target.n_vocab, n).tolist()
        self.drafter.process_rows(rows, tokens, len(self.tokens[seq_id]), seq_id)
        self.rows[seq_id] = np.concatenate([self.rows[seq_id], rows])
        self.tokens[seq_id] += tokens

    def truncate(self, seq_id, n):
        self.rows[seq_id], self.tokens[seq_id] = self.rows[seq_id][:n], self.tokens[seq_id][:n]
        start = self.drafter.truncate(n, seq_id)
        self.drafter.process_rows(self.rows[seq_id][start:], self.tokens[seq_id][start:], start, seq_id)

    def forget(self, seq_id):
        self.rows[seq_id], self.tokens[seq_id] = self.rows[seq_id][:0], []

    def check(self, seq_id, model, id_last=7, n_steps=3):
        """Draft with a new drafter that gets all rows in one piece, so that it has never moved any."""
        fresh = make_drafter(self.head, model, self.drafter.n_ctx, n_unroll=self.drafter.n_unroll, **self.options)
        fresh.process_rows(self.rows[seq_id], self.tokens[seq_id], 0)
        assert draft_chain(self.drafter, id_last, n_steps, seq_id=seq_id) == draft_chain(fresh, id_last, n_steps)
        assert rel_error(self.drafter.draft_logits, fresh.draft_logits) < tolerance(1e-5)
        assert rel_error(self.drafter.hidden_state, fresh.hidden_state) < tolerance(1e-5)


@pytest.fixture
def model(tiny_target, model_address):
    return model_address(tiny_target.path)


@pytest.fixture
def n_slots(tiny_head, model):
    """Return `n_slots(drafter)`: slots of its cache, with F32 and one layer."""
    n_bytes = make_drafter(tiny_head, model, n_ctx=1).n_bytes_cache / N_PAD
    return lambda drafter: drafter.n_bytes_cache / n_bytes


@pytest.mark.parametrize("n_unroll", [1, 3])
@pytest.mark.parametrize("name", HEADS)
def test_sequences_grow_side_by_side(name, n_unroll, tiny_target, model, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    n_seq = 4
    drafter = make_drafter(head, model, 4096, n_seq_max=n_seq, n_unroll=n_unroll, n_batch=64)
    texts, rng, sizes = Texts(drafter, head, n_seq), np.random.default_rng(7), set()
    for i in range(120):
        # the first sequences grow fastest; a piece is a single row, or a prompt
        which = [s for s in range(n_seq) if rng.random() < 0.9 / (s + 1)] or [0]
        for seq_id in which:
            texts.process(seq_id, int(rng.integers(1, 4)) if rng.random() < 0.7 else int(rng.integers(10, 60)))
        draft_chains(drafter, which, [3] * len(which), [int(n) for n in rng.integers(0, 5, len(which))])
        sizes.add(drafter.n_bytes_cache)
        if i % 10 == 9:
            texts.check(int(rng.choice(which)), model)
    assert len(texts.tokens[0]) > 1000
    assert len(sizes) > 8  # the cache was made anew that often
    for seq_id in range(n_seq):
        texts.check(seq_id, model)


@pytest.mark.parametrize("type_kv", [8, 2, 30], ids=["q8_0", "q4_0", "bf16"])
def test_caches_of_any_type_grow(type_kv, tiny_target, model, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, head_dim=32)
    options = {"type_k": type_kv, "type_v": type_kv}
    drafter = make_drafter(head, model, 2048, n_seq_max=3, **options)
    texts = Texts(drafter, head, 3, **options)
    for n in (100, 200, 500):
        for seq_id in range(3):
            texts.process(seq_id, n + seq_id)
    drafter.reset(0)
    texts.forget(0)
    texts.process(1, 700)
    for seq_id in (1, 2):
        texts.check(seq_id, model)


def test_rows_that_wait_make_room_too(tiny_head, model):
    drafter = make_drafter(tiny_head, model, 4096, n_seq_max=2)
    texts = Texts(drafter, tiny_head, 2)
    for i in range(900):  # the head is not asked for a while
        texts.process(i % 2, 1)
    for seq_id in (0, 1):
        texts.check(seq_id, model)


@pytest.mark.parametrize("n_unroll", [1, 16, 128])
def test_chains_end_with_the_room_behind_a_sequence(n_unroll, tiny_head, model):
    drafter = make_drafter(tiny_head, model, 700, n_seq_max=2, n_unroll=n_unroll)
    sides = [SideBySide(drafter, ReferenceHead(tiny_head), i, i) for i in range(2)]
    sides[0].process(20)
    sides[1].process(450)
    ids = [side.reference.propose(7, 300).ids for side in sides]
    n_max = drafter.n_expand + 1
    assert draft_chains(drafter, [1, 0], [7, 7], [300, 300]) == [ids[1][:n_max], ids[0][:n_max]]
    sides[0].propose(8, 3)
    assert sides[0].worst.agrees(1e-4)


def test_an_empty_cache_is_small(tiny_head, model, n_slots):
    assert n_slots(make_drafter(tiny_head, model, 32768, n_seq_max=16)) == N_PAD


def test_size_follows_what_is_held(tiny_head, model, n_slots):
    drafter = make_drafter(tiny_head, model, 32768, n_seq_max=16)
    texts = Texts(drafter, tiny_head, 16)
    for seq_id in range(16):
        texts.process(seq_id, 200)
        draft_chain(drafter, 3, 4, seq_id=seq_id)
    assert n_slots(drafter) == 16 * 512
    texts.process(5, 3000)
    assert n_slots(drafter) == 15 * 512 + 4608
    for seq_id in range(16):
        texts.check(seq_id, model)
    texts.truncate(5, 100)  # the cache shrinks with the next rows
    assert n_slots(drafter) <= 2 * 16 * 512 + 4096
    texts.check(5, model)
    for seq_id in range(16):
        drafter.reset(seq_id)
        texts.forget(seq_id)
    assert n_slots(drafter) == 15 * 512  # small extents are kept

    # the whole context, and no slot after it
    one = make_drafter(tiny_head, model, 32768, n_seq_max=16, n_batch=4096)
    rows, tokens = np.zeros((4096, tiny_head.n_embd_inp), np.float32), [1] * 4096
    for i in range(8):
        one.process_rows(rows, tokens, one.n_past(9), 9)
        assert n_slots(one) <= 1.5 * (4096 * (i + 1) + N_SCRATCH) + N_PAD
    assert len(draft_chain(one, 1, 4, seq_id=9)) == 1
    assert n_slots(one) == 32768 + N_PAD
    one.reset(9)
    assert n_slots(one) == N_PAD


def test_size_is_bounded_whatever_happens(tiny_head, model, n_slots):
    n_seq = 6
    drafter = make_drafter(tiny_head, model, 8192, n_seq_max=n_seq)
    texts, rng = Texts(drafter, tiny_head, n_seq), np.random.default_rng(3)
    for _ in range(150):
        seq_id = int(rng.integers(n_seq))
        if rng.random() < 0.2:
            drafter.reset(seq_id)
            texts.forget(seq_id)
        elif rng.random() < 0.2 and texts.tokens[seq_id]:
            texts.truncate(seq_id, int(rng.integers(len(texts.tokens[seq_id]) + 1)))
        elif len(texts.tokens[seq_id]) < 5000:
            texts.process(seq_id, int(10 ** rng.uniform(0, 3.2)))
            n_held = sum(len(tokens) + N_SCRATCH for tokens in texts.tokens if tokens)
            # extents grow by half, as many rows may be free, those of empty sequences, and some more
            assert n_slots(drafter) <= 2 * (1.5 * n_held + n_seq * N_PAD) + n_seq * 512 + 4096
        if rng.random() < 0.15 and texts.tokens[seq_id]:
            texts.check(seq_id, model)


def test_rows_of_a_reset_sequence_are_for_others(tiny_head, model, n_slots):
    drafter = make_drafter(tiny_head, model, 4096, n_seq_max=4)
    texts = Texts(drafter, tiny_head, 4)
    for seq_id, n in enumerate((900, 600, 300, 1000)):
        texts.process(seq_id, n)
    size = n_slots(drafter)
    drafter.reset(1)
    texts.forget(1)
    texts.process(2, 300)  # into the extent of 1
    assert n_slots(drafter) == size
    drafter.restart(0, 0)
    texts.forget(0)
    texts.process(1, 950)  # into the extent of 0
    assert n_slots(drafter) == size
    for seq_id in (1, 2, 3):
        texts.check(seq_id, model)
    draft_chains(drafter, [1, 2, 3], [3, 3, 3], [4, 4, 4])
    for seq_id in (1, 2, 3):
        texts.check(seq_id, model)


def test_sequences_of_about_one_length_share_an_attention(tiny_head, model):
    drafter = make_drafter(tiny_head, model, 4096, n_seq_max=6, n_unroll=1)
    texts = Texts(drafter, tiny_head, 6)
    for seq_id in range(6):
        texts.process(seq_id, 20)
    draft_chain(drafter, 3, 3)
    n_nodes = drafter.n_graph_nodes
    for _ in range(12):
        for seq_id in (4, 0, 2, 1, 5, 3):
            texts.process(seq_id, 57)
        draft_chains(drafter, [5, 3, 1, 0, 2, 4], [3] * 6, [3] * 6)
        assert drafter.n_graph_nodes == n_nodes
    texts.process(3, 1000)
    draft_chains(drafter, [0, 1, 2, 3, 4, 5], [3] * 6, [3] * 6)
    assert drafter.n_graph_nodes == n_nodes + 2  # its own node, and the concatenation
    for seq_id in range(6):
        texts.check(seq_id, model)


@pytest.mark.parametrize("n_bad", [100, 700])
@pytest.mark.parametrize("name", ["plain", "layers_2"])
def test_what_is_not_a_number_dies_with_its_sequence(name, n_bad, tiny_target, model, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    drafter = make_drafter(head, model, 4096, n_seq_max=3)
    texts = Texts(drafter, head, 3)
    texts.process(2, 700)

    def poison(seq_id):
        drafter.process_rows(np.full((n_bad, head.n_embd_inp), np.nan, np.float32), [1] * n_bad, 0, seq_id)
        draft_chain(drafter, 3, 3, seq_id=seq_id)

    poison(0)
    texts.process(1, 100)
    texts.check(2, model)
    drafter.reset(0)
    texts.process(1, 300)  # in its own extent
    texts.check(1, model)
    for forget in (lambda: drafter.reset(0), lambda: drafter.truncate(0), lambda: drafter.restart(0)):
        poison(0)
        forget()
        texts.process(0, 100)
        texts.check(0, model)
        texts.forget(0)
        drafter.reset(0)
    texts.check(2, model)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited in Linux's way")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="AddressSanitizer aborts where malloc would fail")
def test_no_memory_for_more(tiny_head, model, place):
    if place != "here":
        pytest.skip("the memory is the server's")
    n_far = 2**27
    drafter = make_drafter(tiny_head, model, 2 * n_far, n_seq_max=2)
    texts = Texts(drafter, tiny_head, 2)
    texts.process(0, 300)
    drafter.restart(n_far, 1)
    size = drafter.n_bytes_cache
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as f:
        n_bytes = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes + 2**30, limits[1]))
    try:
        with pytest.raises(Eagle3Error, match="cannot allocate the draft's K/V cache"):
            drafter.process_rows(np.zeros((1, tiny_head.n_embd_inp), np.float32), [1], n_far, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert [drafter.n_past(0), drafter.n_past(1), drafter.n_bytes_cache] == [300, n_far, size]
    drafter.reset(1)
    for seq_id in (0, 1):
        texts.process(seq_id, 400)
        texts.check(seq_id, model)


@pytest.mark.parametrize("name", ["plain", "layers_2_window", "kimi"])
def test_states_move_between_caches_of_any_size(name, tiny_target, model, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    large = make_drafter(head, model, 4096, n_seq_max=3)
    texts = Texts(large, head, 3)
    for seq_id, n in enumerate((40, 900, 300)):
        texts.process(seq_id, n)
        draft_chain(large, 3, 3, seq_id=seq_id)
    small = make_drafter(head, model, 1000)
    for seq_id in (2, 1, 0, 1):
        state = large.state_get(seq_id)
        small.state_set(state)
        assert small.state_get() == state
        assert draft_chain(small, 7, 4) == draft_chain(large, 7, 4, seq_id=seq_id)
        assert rel_error(small.draft_logits, large.draft_logits) < tolerance(1e-5)
    large.state_set(large.state_get(1), 0)
    texts.rows[0], texts.tokens[0] = texts.rows[1], list(texts.tokens[1])
    for seq_id in range(3):
        texts.process(seq_id, 30)
        texts.check(seq_id, model)
