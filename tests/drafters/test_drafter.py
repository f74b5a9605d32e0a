"""The drafter's contract beside its numbers: positions, taking back, state, limits, errors."""

import threading
import time

import numpy as np
import pytest

import placement
from drafting import N_STEPS, SideBySide, compare, draft_chain, make_drafter, rel_error
from llama_cpp_eagle3 import _core
from llama_cpp_eagle3.errors import BusyError, ContextFullError, Eagle3Error, IncompatibleDraftError
from reference import ReferenceHead
from tiny import write_head
from tolerance import tolerance

pytestmark = pytest.mark.also_on_rpc("both-on-rpc")

TOLERANCE = 1e-4


@pytest.fixture
def side(tiny_target, tiny_head, model_address):
    side = SideBySide(make_drafter(tiny_head, model_address(tiny_target.path)), ReferenceHead(tiny_head))
    yield side
    del side.drafter  # pytest keeps the fixture longer than the server that the drafter may be on


def rows_of(head, n, rng):
    return rng.normal(0.0, 2.0, (n, head.n_embd_inp)).astype(np.float32)


def test_describes_its_head(side, tiny_head, place):
    drafter, variant = side.drafter, tiny_head.variant
    assert drafter.boundaries == list(variant.boundaries)
    assert drafter.n_embd == variant.n_embd
    assert drafter.n_past() == 0
    device = placement.draft_device()
    assert drafter.device == ("CPU" if device is None else device.name)
    head = drafter.head
    assert (head.path, head.arch, head.dialect) == (tiny_head.path, "eagle3", "upstream")
    assert head.n_layer == 1
    assert head.n_head == variant.n_head
    assert head.n_vocab_dft == variant.n_vocab_dft
    assert head.has_d2t
    assert not head.has_tok_embd
    assert _core.read_head(tiny_head.path).n_ff == variant.n_ff


def test_no_fc_reads_the_final_normed_state(tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, use_aux_hidden_state=False)
    drafter = make_drafter(head, model_address(tiny_target.path))
    assert drafter.boundaries == [tiny_target.n_layer + 1]
    assert drafter.head.boundaries == []


def test_boundaries_can_be_overridden(tiny_target, tiny_head, model_address):
    model = model_address(tiny_target.path)
    assert make_drafter(tiny_head, model, boundaries=[0, 2, 4]).boundaries == [0, 2, 4]
    with pytest.raises(IncompatibleDraftError, match="3 boundaries, 2"):
        make_drafter(tiny_head, model, boundaries=[0, 2])
    with pytest.raises(Eagle3Error, match="5"):
        make_drafter(tiny_head, model, boundaries=[0, 2, 5])


@pytest.mark.parametrize("n_batch", [1, 16, 17, 512])
@pytest.mark.parametrize("n_prompt", [1, 2, 15, 16, 17, 18, 33, 100])
def test_prompts_of_any_length_in_one_piece(tiny_target, tiny_head, model_address, n_prompt, n_batch):
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), n_batch=n_batch)
    side = SideBySide(drafter, ReferenceHead(tiny_head))
    side.process(n_prompt)
    side.propose(side.token(), 2)
    assert side.worst.agrees(TOLERANCE)


@pytest.mark.parametrize("n_batch", [16, 512])
@pytest.mark.parametrize("n_keep", [None, 30])
def test_prompts_that_wait(tiny_target, tiny_head, model_address, n_batch, n_keep):
    """A prompt's rows wait until a draft needs them; later rows wait as well."""
    drafter = make_drafter(tiny_head, model_address(tiny_target.path), n_batch=n_batch)
    side = SideBySide(drafter, ReferenceHead(tiny_head))
    side.process(150, can_defer=True)
    side.process(1, can_defer=True)
    assert drafter.n_waiting() == (151 if n_batch == 512 else 151 % 16)  # pieces longer than a batch do not wait
    if n_keep is not None:
        side.truncate(n_keep)
    copy = drafter.state_get()
    side.propose(side.token())
    assert drafter.n_waiting() == 1
    drafter.state_set(copy)
    side.propose(side.token())
    side.process(1)
    side.propose(side.token())
    assert side.worst.agrees(TOLERANCE)


@pytest.mark.parametrize("n_layer", [1, 2])
def test_long_contexts_cross_the_padding(tiny_target, model_address, tmp_path, n_layer):
    head = write_head(tmp_path / "head.gguf", tiny_target, n_layer=n_layer)
    drafter = make_drafter(head, model_address(tiny_target.path), 1024, n_batch=64)
    side = SideBySide(drafter, ReferenceHead(head))
    for border in (256, 512):
        side.process(border - 5 - side.n_past)
        while side.n_past < border + 4:  # chains of six cross the border, then catch-ups do
            id_last = side.token()
            side.propose(id_last)
            side.process(2, first=id_last)
    side.process(300)  # one piece over the next border
    side.propose(side.token())
    assert side.worst.agrees(TOLERANCE)


def test_a_proposal_can_be_repeated_with_another_token(side):
    side.process(20)
    for id_last in (5, 6, 5):
        side.propose(id_last)
    side.process(1, first=6)  # neither the first nor the last row
    side.propose(7)
    side.process(3, first=8)
    side.propose(9)
    assert side.worst.agrees(TOLERANCE)


@pytest.mark.parametrize("n_prompt", [10, 40])
@pytest.mark.parametrize("n_keep", [0, 1, 2, 9, 10, 30, 38, 39])
@pytest.mark.parametrize("proposed", [False, True], ids=["prompt", "proposed"])
def test_truncate_and_go_on(side, n_prompt, n_keep, proposed):
    side.process(n_prompt)
    if proposed:
        side.propose(side.token(), 3)
    side.truncate(n_keep)
    side.process(5)
    side.propose(side.token())
    assert side.worst.agrees(TOLERANCE)


def test_truncate_again_before_the_rows_come(side):
    side.process(40)
    side.drafter.truncate(30)
    side.truncate(29)
    side.process(3)
    side.propose(4)
    assert side.worst.agrees(TOLERANCE)


def test_truncate_keeps_waiting_rows(side):
    side.process(40)
    side.propose(1)
    side.process(4, first=1)
    assert side.drafter.truncate(43) == 43
    assert side.drafter.truncate(100) == 43


def test_reset_forgets_everything(side):
    side.process(40)
    side.propose(3)
    side.drafter.reset()
    side.reference.truncate(0)
    assert side.drafter.n_past() == 0
    assert draft_chain(side.drafter, 3, 4) == []
    side.process(12)
    side.propose(3)
    assert side.worst.agrees(TOLERANCE)


@pytest.mark.parametrize("n_layer", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_calls(tiny_target, model_address, tmp_path, seed, n_layer):
    head = write_head(tmp_path / "head.gguf", tiny_target, n_layer=n_layer, sliding_window=24 if seed % 2 else 0)
    side = SideBySide(make_drafter(head, model_address(tiny_target.path), n_batch=16), ReferenceHead(head), seed)
    saved = None
    for _ in range(80):
        what = side.rng.choice(["process", "accept", "propose", "truncate", "save", "load", "reset"], p=P_CALLS)
        if what == "process" and side.n_past < 150:
            side.process(int(side.rng.integers(1, 40)))
        elif what == "accept" and side.n_past < 190:
            id_last = side.token()
            if side.n_past:
                side.propose(id_last, int(side.rng.integers(1, 5)))
            side.process(int(side.rng.integers(1, 6)), first=id_last)
        elif what == "propose" and side.n_past:
            side.propose(side.token(), 3)
        elif what == "truncate":
            side.truncate(int(side.rng.integers(0, side.n_past + 2)))
        elif what == "save":
            saved = side.drafter.state_get(), side.reference.rows, side.reference.tokens
        elif what == "load" and saved:
            side.drafter.state_set(saved[0])
            side.reference.rows, side.reference.tokens = saved[1:]
        elif what == "reset":
            side.truncate(0)
        assert side.drafter.n_past() == side.n_past
        assert side.worst.agrees(TOLERANCE), what


P_CALLS = [0.15, 0.35, 0.15, 0.1, 0.1, 0.1, 0.05]


@pytest.mark.parametrize("proposed", [False, True], ids=["waiting", "proposed"])
@pytest.mark.parametrize("n_prompt", [0, 7, 40])
def test_state_moves_to_another_drafter(side, tiny_target, tiny_head, model_address, n_prompt, proposed):
    side.process(n_prompt)
    if proposed and n_prompt:
        side.propose(4)
    state = side.drafter.state_get()
    assert isinstance(state, bytes)
    other = SideBySide(make_drafter(tiny_head, model_address(tiny_target.path)), side.reference)
    other.process(3) if n_prompt == 0 else other.drafter.process_rows(np.ones((3, 192), np.float32), [1, 2, 3], 0)
    if n_prompt == 0:
        other.reference.truncate(0)
    other.drafter.state_set(state)
    assert other.drafter.n_past() == n_prompt
    assert other.drafter.state_get() == state
    other.process(2, first=4)
    other.propose(9)
    assert other.worst.agrees(TOLERANCE)


def test_a_bad_state_changes_nothing(side, tiny_target, model_address, tmp_path):
    model = model_address(tiny_target.path)
    side.process(40)
    state = side.drafter.state_get()
    other_head = write_head(tmp_path / "other.gguf", tiny_target, seed=99)
    other = make_drafter(other_head, model)
    other.process_rows(np.ones((40, 192), np.float32), [1] * 40, 0)
    foreign = other.state_get()
    long = make_drafter(side.reference.head, model, 512)
    long.process_rows(np.ones((300, 192), np.float32), [1] * 300, 0)
    for bad, error in [
        (b"", ValueError),
        (b"x" * 100, ValueError),
        (state[:-1], ValueError),
        (state + b"x", ValueError),
        (foreign, IncompatibleDraftError),
        (long.state_get(), ValueError),
    ]:
        with pytest.raises(error):
            side.drafter.state_set(bad)
    assert side.drafter.state_get() == state
    side.propose(3)
    assert side.worst.agrees(TOLERANCE)


@pytest.mark.parametrize("n_past", [0, 19, 21, -1])
def test_rows_must_continue(side, rng, tiny_head, n_past):
    side.process(20)
    with pytest.raises(Eagle3Error, match=f"20.*{n_past}"):
        side.drafter.process_rows(rows_of(tiny_head, 2, rng), [1, 2], n_past)
    assert side.drafter.n_past() == 20
    side.propose(3)
    assert side.worst.agrees(TOLERANCE)


@pytest.mark.parametrize("shape", [(2, 64), (3, 192), (192,), (2, 193), (0, 192)])
def test_rows_must_have_the_right_shape(side, shape):
    with pytest.raises(ValueError, match="192"):
        side.drafter.process_rows(np.zeros(shape, np.float32), [1, 2], 0)
    assert side.drafter.n_past() == 0


@pytest.mark.parametrize("token", [-1, 320, 2**31 - 1])
def test_tokens_must_be_of_the_vocabulary(side, rng, tiny_head, token):
    side.process(5)
    with pytest.raises(ValueError, match=f"{token}.*319"):
        side.drafter.process_rows(rows_of(tiny_head, 2, rng), [1, token], 5)
    with pytest.raises(ValueError, match=f"{token}.*319"):
        draft_chain(side.drafter, token, 3)
    assert side.drafter.n_past() == 5
    side.propose(3)
    assert side.worst.agrees(TOLERANCE)


def test_rows_may_have_an_axis_for_boundaries_and_any_layout(side, tiny_head, rng):
    rows = rows_of(tiny_head, 6, rng)
    side.drafter.process_rows(rows.reshape(6, 3, 64), list(range(6)), 0)
    want = draft_chain(side.drafter, 7, 4)
    side.drafter.reset()
    side.drafter.process_rows(np.asfortranarray(rows.astype(np.float64)), list(range(6)), 0)
    assert draft_chain(side.drafter, 7, 4) == want


def test_no_rows_is_no_news(side):
    side.process(5)
    side.drafter.process_rows(np.zeros((0, 192), np.float32), [], 5)
    assert side.drafter.n_past() == 5


def test_nothing_asked_nothing_drafted(side):
    side.process(5)
    assert draft_chain(side.drafter, 3, 0) == []


@pytest.mark.parametrize("n_max", [-1, -(2**31)])
def test_less_than_nothing(side, n_max):
    side.process(5)
    with pytest.raises(ValueError, match=f"a draft needs depth, n_tokens >= 0 .* {n_max}"):
        draft_chain(side.drafter, 3, n_max)


def test_nothing_to_draft_from(side):
    assert draft_chain(side.drafter, 3, 4) == []


def test_p_min_is_the_chance_among_the_ten_best(side):
    side.process(30)
    n_short = 0
    for id_last in range(20):
        want = side.reference.propose(id_last, 8)
        for p_min in (0.0, 0.3, 0.6, 0.9, 1.0):
            if min(abs(p - p_min) for p in want.probs) < 1e-4:
                continue
            n = next((i for i, p in enumerate(want.probs) if p < p_min), 8)
            assert draft_chain(side.drafter, id_last, 8, p_min) == want.ids[:n]
            assert draft_chain(side.drafter, id_last, 8, p_min=p_min) == want.ids[:n]
            n_short += 0 < n < 8
    assert n_short > 5  # chains that end in the middle have occurred


def test_full_context(tiny_target, tiny_head, model_address):
    n_ctx = 64  # less than one step of the padding
    side = SideBySide(make_drafter(tiny_head, model_address(tiny_target.path), n_ctx), ReferenceHead(tiny_head))
    side.process(n_ctx - 3)
    while True:
        want = side.reference.propose(7, 8).ids
        got = draft_chain(side.drafter, 7, 8)
        assert got == want[: len(got)]
        # the slot of the last row and those after it give one token each
        assert len(got) == min(8, n_ctx - side.n_past + 1)
        if side.n_past == n_ctx:
            break
        side.process(1, first=7)
    with pytest.raises(ContextFullError, match="64"):
        side.drafter.process_rows(np.zeros((1, 192), np.float32), [1], n_ctx)
    side.truncate(30)
    with pytest.raises(ContextFullError, match="64"):
        side.drafter.process_rows(np.zeros((60, 192), np.float32), [1] * 60, side.n_past)
    side.process(3)
    side.propose(4)
    assert side.worst.agrees(TOLERANCE)


@pytest.mark.parametrize("n_bad", [2, 30])
def test_rows_that_are_not_numbers_do_no_lasting_harm(side, tiny_head, n_bad):
    side.process(20)
    side.drafter.process_rows(np.full((n_bad, 192), np.nan, np.float32), [1] * n_bad, 20)
    assert len(draft_chain(side.drafter, 3, 4)) <= 4
    side.truncate(19)
    side.process(9)
    side.propose(3)
    assert side.worst.agrees(TOLERANCE)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_bad", [1, 2, 40])
def test_no_slot_holds_what_is_no_number(tiny_target, tiny_head, model_address, rng, bad, n_bad):
    """Some devices multiply masked slots by zero: after rows that are not finite, drafts must stay the same."""
    rows, more = rows_of(tiny_head, 20, rng), rows_of(tiny_head, 5, rng)
    wrong = rows_of(tiny_head, n_bad, rng)
    wrong[:, 7] = bad
    states, drafts, logits = [], [], []
    for between in (None, np.zeros_like(wrong), wrong):
        drafter = make_drafter(tiny_head, model_address(tiny_target.path))
        drafter.process_rows(rows, list(range(1, 21)), 0)
        if between is not None:
            drafter.process_rows(between, [1] * n_bad, 20)
            draft_chain(drafter, 3, N_STEPS)
            states.append(drafter.state_get())
            assert drafter.truncate(20) == 19  # the last row's token may change now
            drafter.process_rows(rows[19:], [20], 19)
        drafter.process_rows(more, [5, 6, 7, 8, 9], 20)
        drafts.append(draft_chain(drafter, 3, N_STEPS))
        logits.append(drafter.draft_logits)
    assert states[0] == states[1]  # the state is that of rows of zeros: nothing else was written
    assert drafts[0] == drafts[1] == drafts[2]
    assert rel_error(logits[1], logits[0]) < tolerance(TOLERANCE)
    assert rel_error(logits[2], logits[0]) < tolerance(TOLERANCE)


def test_arguments_of_the_constructor(tiny_target, tiny_head, model_address):
    model = model_address(tiny_target.path)
    for kwargs in ({"n_threads": 0}, {"n_batch": 0}, {"type_k": -1}, {"type_v": 12345}, {"type_k": 12}):
        with pytest.raises(ValueError):
            make_drafter(tiny_head, model, **kwargs)
    for n_ctx in (0, -5):
        with pytest.raises(ValueError):
            make_drafter(tiny_head, model, n_ctx)
    with pytest.raises(ValueError):
        _core.Eagle3Drafter(tiny_head.path, 0, 256)
    with pytest.raises(TypeError):
        _core.Eagle3Drafter(tiny_head.path, model, 256, n_gpu=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="multiple of 32"):
        make_drafter(tiny_head, model, type_k=8)  # q8_0 with heads of 16


def test_shared_tables_are_not_copied(tiny_target, model_address, tmp_path):
    model = model_address(tiny_target.path)
    size = tiny_target.n_vocab * tiny_target.n_embd * 4
    shared = write_head(tmp_path / "shared.gguf", tiny_target, n_vocab_dft=None, own_output=False)
    assert make_drafter(shared, model).n_bytes_shared == 2 * size
    own = write_head(tmp_path / "own.gguf", tiny_target, n_vocab_dft=None, own_embd=True)
    assert make_drafter(own, model).n_bytes_shared == 0


def test_drafting_is_deterministic(side):
    side.process(50)
    want = draft_chain(side.drafter, 3, N_STEPS)
    logits = side.drafter.draft_logits
    for _ in range(3):
        assert draft_chain(side.drafter, 3, N_STEPS) == want
        assert rel_error(side.drafter.draft_logits, logits) < tolerance(1e-5)


def test_many_drafters_side_by_side(tiny_target, tiny_head, model_address):
    model = model_address(tiny_target.path)
    drafters = [make_drafter(tiny_head, model) for _ in range(4)]
    for drafter in drafters:
        assert compare(drafter, ReferenceHead(tiny_head), (2, 0)).agrees(TOLERANCE)


def test_a_second_thread_is_kept_out(tiny_target, model_address, tmp_path, rng):
    head = write_head(tmp_path / "head.gguf", tiny_target, n_layer=2)
    drafter = make_drafter(head, model_address(tiny_target.path), 4096)
    rows, tokens = rows_of(head, 4000, rng), [1] * 4000
    calls = [
        lambda: draft_chain(drafter, 1, 2),
        lambda: drafter.process_rows(rows[:1], [1], drafter.n_past()),
        lambda: drafter.truncate(5),
        lambda: drafter.copy(0, 0, 5),
        lambda: drafter.n_bytes_cache,
        drafter.reset,
        drafter.state_get,
        lambda: drafter.draft_logits,
        lambda: drafter.hidden_state,
    ]
    for call in calls:
        drafter.reset()
        worker = threading.Thread(target=drafter.process_rows, args=(rows, tokens, 0))
        worker.start()
        while drafter.n_past() == 0 and worker.is_alive():
            time.sleep(0.0005)
        assert worker.is_alive(), "the machine is too fast for this test"
        with pytest.raises(BusyError):
            call()
        worker.join()
        assert drafter.n_past() == len(tokens)
    assert len(draft_chain(drafter, 1, 2)) == 2
