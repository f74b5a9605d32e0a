"""A sequence that copies the beginning of another one drafts as if it had been given the rows itself."""

import pytest

from drafting import SideBySide, draft_chain, draft_chains, make_drafter
from head_variants import VARIANTS
from reference import ReferenceHead
from tiny import write_head

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

HEADS = ["plain", "sliding_window", "layers_2", "layers_2_window", "no_fc", "everything"]


def make_sides(head, model, n_seq=2, **kwargs):
    drafter = make_drafter(head, model, n_seq_max=n_seq, **kwargs)
    return [SideBySide(drafter, ReferenceHead(head), i, i) for i in range(n_seq)]


def copy(src, dst, n_past):
    """Copy in both, and give the drafter the rows that it asks for."""
    drafter = src.drafter
    before = drafter.state_get(src.seq_id)
    n = drafter.copy(src.seq_id, dst.seq_id, n_past)
    assert drafter.n_past(dst.seq_id) == n
    assert drafter.state_get(src.seq_id) == before
    dst.reference.rows, dst.reference.tokens = src.reference.rows, src.reference.tokens
    dst.reference.start = src.reference.start
    dst.reference.truncate(n_past)
    rows, tokens = dst.reference.rows, dst.reference.tokens
    drafter.process_rows(rows[n - dst.reference.start :], tokens[n - dst.reference.start :], n, dst.seq_id)
    return n


@pytest.mark.parametrize("name", HEADS)
def test_copy_and_diverge(name, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    src, dst = make_sides(head, model_address(tiny_target.path), n_ctx=1024, n_batch=32)
    src.process(300)
    src.propose(src.token(), 3)
    src.process(4, first=3)
    for n_past in (0, 1, 2, 150, 299, 300, 301, 303, 304):
        copy(src, dst, n_past)
        dst.process(5)
        dst.propose(dst.token(), 4)
        dst.process(40)  # the cache has grown by then
        dst.propose(dst.token(), 2)
    src.propose(src.token(), 4)
    src.process(3)
    src.propose(src.token(), 2)
    assert src.worst.agrees(1e-4)
    assert dst.worst.agrees(1e-4)


@pytest.mark.parametrize("name", ["plain", "layers_2"])
@pytest.mark.parametrize("state", ["prompt", "proposed", "waiting", "short", "truncated", "restarted"])
def test_rows_come_from_where_truncate_would_have_them(state, name, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, **VARIANTS[name])
    src, dst = make_sides(head, model_address(tiny_target.path))
    drafter = src.drafter
    if state == "restarted":
        src.restart(30)
    src.process(5 if state == "short" else 40)
    if state not in ("prompt", "short"):
        src.propose(7, 3)
    if state == "waiting":
        src.process(6)
    if state == "truncated":
        drafter.truncate(20)
        src.reference.truncate(19)
    saved = drafter.state_get(0)
    asked = set()
    for n_past in range(src.n_past + 1):
        n = drafter.copy(0, 1, n_past)
        got = drafter.state_get(1)
        assert drafter.truncate(n_past, 0) == n
        assert drafter.state_get(0) == got
        drafter.state_set(saved, 0)
        asked.add(n_past - n)
    assert asked <= {0, 1}
    copy(src, dst, src.n_past)
    src.truncate(src.n_past)  # gives it the missing rows
    dst.propose(7, 3)
    src.propose(7, 3)
    assert src.worst.agrees(1e-4)
    assert dst.worst.agrees(1e-4)


def test_waiting_rows_are_taken_along(tiny_target, tiny_head, model_address):
    src, dst = make_sides(tiny_head, model_address(tiny_target.path))
    src.process(40)
    assert copy(src, dst, 40) == 40
    dst.propose(5)  # no row was given to it
    assert copy(src, dst, 39) == 38
    src.propose(6)
    src.process(4, first=6)
    for n_past, n in ((44, 44), (42, 42), (41, 41), (40, 39)):
        assert copy(src, dst, n_past) == n
        dst.propose(6)
    assert dst.worst.agrees(1e-4)


@pytest.mark.parametrize("n_unroll", [1, 3])
def test_a_prefix_for_many(tiny_target, tiny_head, model_address, n_unroll):
    sides = make_sides(tiny_head, model_address(tiny_target.path), 6, n_ctx=1024, n_unroll=n_unroll)
    sides[2].process(280)
    for side in sides:
        if side.seq_id % 2:
            side.process(10 + 100 * side.seq_id)  # none of these rows stays
    for side in sides:
        if side is not sides[2]:
            copy(sides[2], side, 270)
        side.process(side.seq_id + 1)
    ids_last = [side.token() for side in sides]
    got = draft_chains(sides[0].drafter, list(range(6)), ids_last, [4] * 6)
    for side, id_last, ids in zip(sides, ids_last, got, strict=True):
        assert ids == side.reference.propose(id_last, 4).ids
    # continue after a copy whose source is gone
    sides[2].drafter.reset(2)
    sides[2].reference.truncate(0)
    sides[2].process(500)
    copy(sides[5], sides[0], sides[5].n_past)
    for side in sides:
        side.propose(side.token(), 3)
        assert side.worst.agrees(1e-4)


def test_copies_of_nothing(tiny_target, tiny_head, model_address):
    src, dst = make_sides(tiny_head, model_address(tiny_target.path))
    dst.process(30)
    assert copy(src, dst, 0) == 0
    assert draft_chain(dst.drafter, 3, 4, seq_id=1) == []
    src.restart(25)
    dst.process(30)
    assert copy(src, dst, 25) == 25
    assert draft_chain(dst.drafter, 3, 4, seq_id=1) == []
    src.process(30)
    copy(src, dst, 10)  # copy before the restart
    for side in (src, dst):
        side.process(8)
        side.propose(3)
        assert side.worst.agrees(1e-4)


def test_bad_arguments_change_nothing(tiny_target, tiny_head, model_address):
    sides = make_sides(tiny_head, model_address(tiny_target.path))
    for side in sides:
        side.process(20 + side.seq_id)
    drafter = sides[0].drafter
    drafter.begin([0], [1], 2)
    states = [drafter.state_get(i) for i in range(2)]
    for src, dst, n_past, match in (
        (2, 0, 0, r"0\.\.1"),
        (0, 2, 0, r"0\.\.1"),
        (-1, 0, 0, r"0\.\.1"),
        (0, 1, 21, r"0\.\.20, found 21"),
        (1, 0, 22, r"0\.\.21, found 22"),
        (0, 1, -1, r"0\.\.20, found -1"),
        (1, 1, 5, "itself"),
    ):
        with pytest.raises(ValueError, match=match):
            drafter.copy(src, dst, n_past)
        assert len(drafter.nodes) == 2  # the draft continues
    assert [drafter.state_get(i) for i in range(2)] == states
