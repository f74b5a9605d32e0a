"""The drafter, fed by a real target's tap in a speculative loop, drafts as the reference does from the true rows."""

import pytest

from drafting import N_STEPS, draft_chain, make_drafter, rel_error
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.errors import Eagle3Error, IncompatibleDraftError
from lowlevel import LowLevel
from reference import ReferenceHead, run_target
from tiny import write_head, write_perfect_pair, write_target
from tolerance import of_target

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

HEADS = {
    "boundaries_3": {},
    "boundaries_5": {"boundaries": (0, 1, 2, 3, 4)},
    "last_layer": {"boundaries": (4,)},
    "eagle_3_1": {"fc_norm": True, "norm_output": True},
    "no_fc": {"use_aux_hidden_state": False},
}


class Speculation:
    """The loop by hand: greedy, with drafts of four tokens."""

    def __init__(self, low: LowLevel, drafter: _core.Eagle3Drafter, prompt: list[int]):
        self.low, self.drafter = low, drafter
        self.tokens = list(prompt)
        self.n_drafted = self.n_accepted = 0
        for i in range(0, len(prompt), 64):
            piece = prompt[i : i + 64]
            low.target.decode(piece, i, True)
            drafter.process(low.tap, piece, i)
        self.tokens.append(low.target.argmax(len(piece) - 1))

    def round(self) -> list[int]:
        """Propose, verify, accept, commit; return the draft."""
        *past, id_last = self.tokens
        draft = draft_chain(self.drafter, id_last, 4)
        batch = [id_last, *draft]
        self.low.target.decode(batch, len(past), True)
        accepted = []
        for row in range(len(batch)):
            accepted.append(self.low.target.argmax(row))
            if row == len(draft) or draft[row] != accepted[row]:
                break
        self.drafter.process(self.low.tap, batch[: len(accepted)], len(past))
        self.tokens += accepted
        self.n_drafted += len(draft)
        self.n_accepted += len(accepted) - 1
        return draft


TARGETS = [("llama", "native"), ("llama", "callback"), ("qwen3", "auto"), ("qwen2", "auto")]
# llama.cpp's llama graph does not publish the end of the last layer
CASES = [
    (*t, name)
    for t in TARGETS
    for name in HEADS
    if t[1] != "native" or name not in ("boundaries_5", "last_layer", "no_fc")
]


@pytest.mark.parametrize(("arch", "kind", "name"), CASES)
def test_drafts_from_the_rows_of_a_real_target(arch, kind, name, tmp_path, rng):
    target = write_target(tmp_path / "target.gguf", arch)
    head = write_head(tmp_path / "head.gguf", target, **HEADS[name])
    with LowLevel(target.path, head.boundaries, kind, n_ubatch=16) as low:
        drafter = make_drafter(head, low.model)
        loop = Speculation(low, drafter, [int(t) for t in rng.integers(0, 300, 100)])
        for _ in range(6):
            rows = run_target(target, loop.tokens[:-1]).rows(head.boundaries)
            reference = ReferenceHead(head)
            reference.process(rows, loop.tokens[:-1], 0)
            want = reference.propose(loop.tokens[-1], 4)
            assert loop.round() == want.ids
        reference = ReferenceHead(head)
        reference.process(run_target(target, loop.tokens[:-1]).rows(head.boundaries), loop.tokens[:-1], 0)
        want = reference.propose(loop.tokens[-1], N_STEPS)
        assert draft_chain(drafter, loop.tokens[-1], N_STEPS) == want.ids
        assert rel_error(drafter.draft_logits, want.logits[-1]) < of_target(1e-4)
        assert rel_error(drafter.hidden_state, want.states[-1]) < of_target(1e-4)


@pytest.mark.parametrize("kind", ["row", "token"])
def test_all_of_a_perfect_head_is_accepted(kind, tmp_path):
    target, head = write_perfect_pair(tmp_path / "target.gguf", tmp_path / "head.gguf", kind=kind)
    with LowLevel(target.path, head.boundaries) as low:
        loop = Speculation(low, make_drafter(head, low.model), [5, 9, 77])
        for _ in range(20):
            loop.round()
        assert loop.n_accepted == loop.n_drafted == 80
        # the text is the reference's
        want = loop.tokens[:4]
        while len(want) < 20:
            want.append(int(run_target(target, want).logits[-1].argmax()))
        assert loop.tokens[:20] == want


def test_little_of_a_random_head_is_accepted(tiny_target, tiny_head):
    with LowLevel(tiny_target.path, tiny_head.boundaries) as low:
        loop = Speculation(low, make_drafter(tiny_head, low.model), [5, 9, 77])
        for _ in range(20):
            loop.round()
        assert loop.n_accepted < 0.1 * loop.n_drafted


def test_rows_that_do_not_fit(tiny_target, tiny_head):
    with LowLevel(tiny_target.path, [1, 2]) as low:
        drafter = make_drafter(tiny_head, low.model)
        with pytest.raises((Eagle3Error, ValueError)):  # nothing is decoded yet
            drafter.process(low.tap, [1], 0)
        low.target.decode([1, 2, 3], 0, True)
        with pytest.raises(IncompatibleDraftError, match=r"192 values at 3 boundaries, the tap has \d of them"):
            drafter.process(low.tap, [1, 2, 3], 0)
    with LowLevel(tiny_target.path, tiny_head.boundaries) as low:
        drafter = make_drafter(tiny_head, low.model)
        low.target.decode([1, 2, 3], 0, True)
        for tokens, rows in (([1, 2, 3, 4], None), ([1, 2], [0]), ([1, 2], [0, 3]), ([1, 2, 3], [0, -1, 2])):
            with pytest.raises(ValueError):
                drafter.process(low.tap, tokens, 0, rows=rows)
        assert drafter.n_past() == 0
        drafter.process(low.tap, [1, 2], 0)
        assert drafter.n_past() == 2
