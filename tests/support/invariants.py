"""Invariants of an engine between any two calls, however the last call ended."""

from __future__ import annotations

import struct
from typing import Any

import llama_cpp
import numpy as np

from drafting import draft_chain
from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3._core import DflashDrafter, Eagle3Drafter, SimpleDrafter
from llama_cpp_eagle3.engine import Engine, Sequence, Slot, State
from llama_cpp_eagle3.engine.prefix_nodes import KeptState, Prefix, key_of
from llama_cpp_eagle3.engine.prefix_tree import PrefixTree


def check_engine(llm: Eagle3Llama, head_may_be_behind: bool = False) -> None:
    """Check the slots of sequences, and the tokens that target and drafter hold of each."""
    engine = llm.engine
    _check_lists(engine, llm._context.sequence)
    _check_host(engine)
    if engine.stepper.opened is not None:
        return  # a generator waits, or a commit was interrupted: the next call ends the step
    for slot in engine.slots:
        _check_place(engine, slot, head_may_be_behind)
    _check_leaves(llm)


def _check_lists(engine: Engine, own: Sequence) -> None:
    running, waiting = engine.scheduler.running, list(engine.scheduler.waiting)
    ids = [id(s) for s in [*running, *waiting, own]]
    assert len(set(ids)) == len(ids), "a sequence is listed twice"
    slots = engine.slots
    for s in running:
        assert s.state is State.RUNNING, s
        assert s.seq_id >= 0, s
        assert slots[s.seq_id].user is s, s
        assert s.saved is None, s
    for s in waiting:
        assert s.state is State.WAITING, s
        assert s.seq_id == -1, s
        assert not s.result.finish_reason, s
    for seq_id, slot in enumerate(slots):
        assert slot.seq_id == seq_id
        if slot.user is not None:
            assert slot.user.seq_id == seq_id, slot
            assert not slot.cached, slot
            assert slot.user.state is State.PAUSED or any(slot.user is s for s in running), slot
    assert own.state in (State.PAUSED, State.DONE), own
    assert own.saved is None, own
    if own.seq_id >= 0:
        assert slots[own.seq_id].user is own


def _check_host(engine: Engine) -> None:
    check_tree(engine.slots.cache.tree)
    for slot in engine.slots:
        prefix, tokens = slot.prefix, slot.tokens
        if not slot.is_intact or slot.user is not None:
            continue
        assert (prefix.node is not None) == bool(tokens), slot
        assert prefix.node is None or prefix in engine.slots.cache.tree.match(key_of(tokens)).nodes[-1].prefixes, slot


def check_tree(tree: PrefixTree) -> None:
    """Check that a tree's counts agree with its content, and that every node is on some prefix's path."""
    n_bytes, n_file_bytes, states, hosted, filed = 0, 0, set(), set(), set()

    def count_file(item: Prefix | KeptState) -> None:
        nonlocal n_file_bytes
        if item.file is not None:
            filed.add(item)
            n_file_bytes += item.file.n_bytes

    def look(node: Any) -> tuple[int, int, int, int]:
        nonlocal n_bytes
        counts = [0, 0, 0, 0]
        for prefix in node.prefixes:
            assert prefix.node is node
            assert prefix.is_in_slot or prefix.saved is not None or prefix.file is not None
            places = 1, prefix.is_in_slot, prefix.saved is not None, prefix.file is not None
            counts = [a + b for a, b in zip(counts, places, strict=True)]
            if prefix.saved is not None:
                hosted.add(prefix)
                n_bytes += 0 if prefix.is_pinned else prefix.n_bytes
            count_file(prefix)
        for first, child in node.children.items():
            assert child.parent is node
            assert child.edge[:4] == first
            assert child.n_tokens == node.n_tokens + len(child.edge) // 4
            assert child.prefixes or child.state or len(child.children) > 1
            counts = [a + b for a, b in zip(counts, look(child), strict=True)]
        state = node.state
        if state is not None:
            assert state.node is node
            assert state.saved is not None or state.file is not None
            assert state.file is None or counts[3] > 0
            if state.saved is not None:
                states.add(state)
                n_bytes += state.n_bytes
            count_file(state)
        if node.parent is not None:
            assert counts == [node.n_through, node.n_slots, node.n_hosted, node.n_filed]
            assert node.n_through > 0
        return counts[0], counts[1], counts[2], counts[3]

    look(tree._root)
    assert (n_bytes, states, hosted) == (tree.n_bytes, set(tree.states), set(tree.hosted))
    assert (n_file_bytes, filed) == (tree.n_file_bytes, set(tree.filed))
    assert set(tree.unfiled) <= {item for item in (*hosted, *states) if item.file is None}
    assert n_bytes <= tree.n_bytes_max
    assert n_file_bytes <= tree.n_file_bytes_max


def _check_place(engine: Engine, slot: Slot, head_may_be_behind: bool) -> None:
    target, drafters, user = engine.memory.target, engine.memory.drafters, slot.user
    if slot.is_dirty if user is None else user.is_dirty:
        return  # the next call clears or settles it
    if user is not None:
        assert 0 <= user.n_past <= len(user.tokens), user
        assert user.scheduled is None, user
        if user.state is State.RUNNING and not user.result.finish_reason:
            assert user.n_pending or user.rows, user
        assert len(user.rows) <= max(1, user.n_past), user
        assert not user.rows or user in engine.stepper.verifier.owners, user
    n_past = len(slot.cached) if user is None else user.n_past
    n_target = target.n_past(slot.seq_id)
    assert n_target == n_past, f"the target holds {n_target} in {slot}"
    assert not target.has_draft(slot.seq_id), slot
    for drafter in () if head_may_be_behind else drafters:
        # ahead where the target had to go back further than the drafter
        n_draft = drafter.n_past(slot.seq_id)
        assert n_draft >= n_past, f"the draft holds {n_draft} in {slot}"
        if user is not None:
            assert n_draft <= len(user.tokens), f"the draft holds {n_draft} in {slot}"


def _check_leaves(llm: Eagle3Llama) -> None:
    memory = llama_cpp.llama_get_memory(llm.ctx)
    target = llm.engine.memory.target
    n_longest = max(target.n_past(seq_id) for seq_id in range(target.n_seq))
    for leaf in range(target.n_seq, llama_cpp.llama_n_seq_max(llm.ctx)):
        assert llama_cpp.llama_memory_seq_pos_max(memory, leaf) < n_longest, f"leaf {leaf}"


def check_empty(llm: Eagle3Llama) -> None:
    """Check that no sequence has left anything."""
    memory, target = llama_cpp.llama_get_memory(llm.ctx), llm.engine.memory.target
    for seq_id in range(llama_cpp.llama_n_seq_max(llm.ctx)):
        assert llama_cpp.llama_memory_seq_pos_max(memory, seq_id) == -1, f"sequence {seq_id}"
    for seq_id in range(target.n_seq):
        assert target.n_past(seq_id) == 0
        assert all(drafter.n_past(seq_id) == 0 for drafter in llm.drafters)
    assert llm.engine.slots.cache.tree.n_bytes == 0
    assert llm.n_tokens == 0


class _DraftState:
    """The parts of a state from `Drafter.state_get`, with an F32 cache."""

    def __init__(self, drafter: Any, seq_id: int):
        head, state = drafter.head, drafter.state_get(seq_id)
        header = struct.Struct("=5i4x2Q2i")
        _, self.start, self.first, n_rows, seeded, *_ = header.unpack_from(state)
        values = np.frombuffer(state, np.float32, offset=header.size)
        n_feat, n_embd_k = len(drafter.boundaries) * head.n_embd_tgt, head.n_head_kv * head.n_embd_head
        self.rows = values[: n_rows * n_feat].reshape(n_rows, n_feat)
        self.tokens = values[n_rows * n_feat :][:n_rows].view(np.int32).tolist()
        n_slots = self.first - self.start + (seeded >= 0)
        self.slots = values[n_rows * (n_feat + 1) :].reshape(2 * head.n_layer, n_slots, n_embd_k)


def check_draft_cache(llm: Eagle3Llama, fresh: Eagle3Llama, slot: Slot) -> None:
    """Check that the drafter has the rows of a slot that it would have after the same tokens in an empty context."""
    tokens = list(slot.tokens)
    n = min(len(tokens), llm.drafters[0].n_past(slot.seq_id))
    if n == 0:
        return
    fresh.reset()
    fresh.eval(tokens[:n])
    if len(llm.drafters) > 1 or not isinstance(llm.drafters[0], Eagle3Drafter):
        for part, other_part in zip(llm.drafters, fresh.drafters, strict=True):
            _check_next_drafts(part, other_part, slot.seq_id)
        return
    rows = np.asarray(fresh.features).reshape(n, -1)
    draft_chain(fresh.drafters[0], 0, 1)  # writes all waiting rows
    mine, other = _DraftState(llm.drafters[0], slot.seq_id), _DraftState(fresh.drafters[0], 0)
    for i in range(min(len(mine.rows), n - mine.first)):
        position = mine.first + i
        assert mine.tokens[i] == tokens[position], f"token {position} of {slot}"
        _check_close(mine.rows[i], rows[position], f"row {position} of {slot}")
    for i in range(mine.start, min(mine.first, n - 1)):
        _check_close(mine.slots[:, i - mine.start], other.slots[:, i], f"cell {i} of {slot}")


def _check_next_drafts(drafter: Any, fresh: Any, seq_id: int) -> None:
    """Check that the next draft is that of another drafter after the same tokens. The state stays unchanged."""
    state = drafter.state_get(seq_id)
    if int.from_bytes(state[4:8], "little") > 0:  # the slot continues without the rows before
        return
    if isinstance(drafter, SimpleDrafter) and drafter.n_past(seq_id) == drafter.n_ctx:
        return  # the slot has no room for one more token
    draft_chain(drafter, 0, 1, seq_id=seq_id)
    found = _logits_of(drafter)
    drafter.state_set(state, seq_id)
    draft_chain(fresh, 0, 1)
    _check_close(found, _logits_of(fresh), f"what is drafted after sequence {seq_id}")


def _logits_of(drafter: Any) -> np.ndarray:
    """Return the logits that the last draft was chosen from."""
    return drafter.block_logits[1:] if isinstance(drafter, DflashDrafter) else drafter.draft_logits


def _check_close(a: np.ndarray, b: np.ndarray, what: str) -> None:
    error = np.linalg.norm(a - b) / np.linalg.norm(b)
    assert error < 1e-2, f"{what} is off by {error:.3f}"
