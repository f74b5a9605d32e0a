"""Saved states include the drafter's."""

from __future__ import annotations

import pickle
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import placement
from drafting import draft_chain
from llama_cpp_eagle3 import Eagle3State, IncompatibleDraftError
from loading import load, load_plain, prompts, take
from tiny import write_head, write_target

pytestmark = pytest.mark.also_on_rpc

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def test_round_trip(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head)) as llm, closing(load(tiny_target, tiny_head)) as other:
        tokens = take(llm, PROMPT, 10)
        state = pickle.loads(pickle.dumps(llm.save_state()))
        assert isinstance(state, Eagle3State)
        assert state.n_tokens == len(PROMPT) + 9
        assert state.size > state.llama_state_size > 0
        expected = take(llm, [*PROMPT, *tokens], 20)
        drafts = [llm.last_stats.drafted, llm.last_stats.accepted]

        other.load_state(state)
        assert other.n_tokens == state.n_tokens
        assert other.drafters[0].n_past() == state.n_tokens
        assert take(other, [*PROMPT, *tokens], 20) == expected
        assert [other.last_stats.drafted, other.last_stats.accepted] == drafts
        assert other.last_stats.prompt_tokens <= 2


def test_the_draft_goes_on_as_if_nothing_had_been(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head)) as llm:
        take(llm, PROMPT, 10)
        state = llm.save_state()
        drafter: Any = llm.drafters[0]
        expected = draft_chain(drafter, 7, 5)
        logits = np.array(drafter.draft_logits)
        take(llm, [9, 9, 9], 10)
        llm.load_state(state)
        assert draft_chain(drafter, 7, 5) == expected
        np.testing.assert_array_equal(drafter.draft_logits, logits)


def test_states_of_another_pair_are_refused(tiny_target: Any, tiny_head: Any, tmp_path: Any) -> None:
    head = write_head(tmp_path / "head.gguf", tiny_target, seed=99)
    target = write_target(tmp_path / "target.gguf", seed=99)
    with closing(load(tiny_target, tiny_head)) as llm:
        expected = take(llm, PROMPT, 10)
        for other_target, other_head, what in ((tiny_target, head, "draft"), (target, tiny_head, "target")):
            with closing(load(other_target, other_head)) as other:
                take(other, PROMPT, 3)
                state = other.save_state()
            with pytest.raises(IncompatibleDraftError, match=f"another {what}: fingerprint"):
                llm.load_state(state)
            assert llm.n_tokens == len(PROMPT) + 9  # nothing has changed
            assert take(llm, PROMPT, 10) == expected


def test_states_that_do_not_fit_are_refused(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target, tiny_head, n_ctx=1024)) as llm:
        llm.eval(prompts(1, length=(600, 601))[0])
        state = llm.save_state()
    with closing(load(tiny_target, tiny_head)) as llm, pytest.raises(IncompatibleDraftError, match=r"600 tokens.* 512"):
        llm.load_state(state)


def test_damaged_states(tiny_target: Any, tiny_head: Any) -> None:
    """An impossible size is noticed before anything changes; later errors leave an empty context."""
    with closing(load(tiny_target, tiny_head)) as llm:
        expected = take(llm, PROMPT, 10)
        n_tokens = llm.n_tokens
        for damage, n_left in (("draft_state", 0), ("llama_state", n_tokens)):
            state = llm.save_state()
            setattr(state, damage, getattr(state, damage)[:-40])
            with pytest.raises((ValueError, RuntimeError)):
                llm.load_state(state)
            assert llm.n_tokens == n_left
            assert take(llm, PROMPT, 10) == expected
            assert llm.last_stats.drafted > 0


def test_a_plain_state_works(tiny_target: Any, tiny_head: Any) -> None:
    """llama_cpp's own state has nothing of the drafter: it continues without drafts until the next prompt."""
    with (
        closing(load_plain(tiny_target, flash_attn=placement.is_vulkan())) as plain,
        closing(load(tiny_target, tiny_head)) as llm,
    ):
        tokens = take(plain, PROMPT, 10)
        state = plain.save_state()
        expected = take(plain, [*PROMPT, *tokens], 20)
        llm.load_state(state)
        assert take(llm, [*PROMPT, *tokens], 20) == expected
        assert llm.last_stats.drafted > 0  # from here on: the drafter has not read the tokens before
        take(llm, [1, 2, 3], 10)
        assert llm.last_stats.drafted > 0


def test_a_state_of_another_flash_attention_is_refused(tiny_target: Any) -> None:
    """Without flash attention llama.cpp keeps V transposed."""
    with (
        closing(load_plain(tiny_target, flash_attn=False)) as plain,
        closing(load(tiny_target, flash_attn=True)) as llm,
    ):
        take(plain, PROMPT, 3)
        with pytest.raises(ValueError, match="type_v or flash_attn; these must be equal"):
            llm.load_state(plain.save_state())
        assert take(llm, PROMPT, 3)


def test_our_state_works_in_plain_llama(tiny_target: Any, tiny_head: Any) -> None:
    with (
        closing(load_plain(tiny_target, flash_attn=placement.is_vulkan())) as plain,
        closing(load(tiny_target, tiny_head)) as llm,
    ):
        tokens = take(llm, PROMPT, 10)
        plain.load_state(llm.save_state())
        assert take(plain, [*PROMPT, *tokens], 20) == take(llm, [*PROMPT, *tokens], 20)


def test_without_a_head(tiny_target: Any, tiny_head: Any) -> None:
    with closing(load(tiny_target)) as bare, closing(load(tiny_target, tiny_head)) as llm:
        tokens = take(bare, PROMPT, 10)
        state = bare.save_state()
        assert state.draft_state == b""
        bare.load_state(state)
        expected = take(bare, [*PROMPT, *tokens], 10)
        llm.load_state(state)
        assert take(llm, [*PROMPT, *tokens], 10) == expected
        bare.load_state(llm.save_state())
        assert bare.n_tokens == llm.n_tokens
