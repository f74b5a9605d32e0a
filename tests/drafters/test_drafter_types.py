"""Weights and K/V in fewer bits. The reference has the file's weights, so that only the arithmetic differs."""

from dataclasses import replace

import numpy as np
import pytest

from drafting import N_STEPS, SideBySide, draft_chain, make_drafter, rel_error
from llama_cpp_eagle3_heads.convert import quantize
from reference import ReferenceHead
from tiny import write_head, write_target

# ggml rounds activations to F16, BF16 or 8 bits before it multiplies them with weights of such types
TOLERANCE_WEIGHTS = {"f16": 2e-3, "bf16": 2e-2, "q8_0": 5e-2, "q4_0": 5e-2}

GGML_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}
TOLERANCE_KV = {"f16": 4e-3, "bf16": 2e-2, "q8_0": 4e-2, "q4_0": 5e-1}


def check(drafter, reference, tolerance):
    """Check that each draft's first level is within the tolerance, and its choice is the best one within it."""
    side, n_same = SideBySide(drafter, reference), 0
    side.process(45)
    accepted = (3, 0, 6, 20, 2, 1, 0, 4)
    for n_accepted in accepted:
        id_last = side.token()
        want = reference.propose(id_last, 1)
        ids = draft_chain(drafter, id_last, 1)
        logits, best = drafter.draft_logits, int(np.argmax(drafter.draft_logits))
        assert rel_error(logits, want.logits[0]) < tolerance
        assert rel_error(drafter.hidden_state, want.states[0]) < tolerance
        assert want.logits[0].max() - want.logits[0][best] < 2 * tolerance * np.abs(want.logits[0]).max()
        assert ids == [best if reference.head.d2t is None else reference.head.d2t[best]]
        n_same += ids == want.ids
        assert len(draft_chain(drafter, id_last, N_STEPS)) == N_STEPS
        side.process(n_accepted + 1, first=id_last)
    assert n_same > len(accepted) / 2


@pytest.mark.parametrize("ftype", TOLERANCE_WEIGHTS)
def test_weights_in_fewer_bits(ftype, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, ftype=ftype)
    drafter = make_drafter(head, model_address(tiny_target.path))
    check(drafter, ReferenceHead(head), TOLERANCE_WEIGHTS[ftype])


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("source", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize("outtype", ["bf16", "q8_0", "q4_0"])
def test_conversion_while_loading(outtype, source, n_threads, tiny_target, model_address, tmp_path):
    """A matrix that is converted while loading is bit for bit that of a converted file; narrower matrices stay."""
    model = model_address(tiny_target.path)
    head = write_head(tmp_path / "head.gguf", tiny_target, ftype=source)
    found = make_drafter(head, model, type=GGML_TYPES[outtype], n_threads=n_threads)
    if list(GGML_TYPES).index(outtype) > list(GGML_TYPES).index(source):
        path = quantize(head.path, tmp_path / "converted.gguf", outtype)
        want = make_drafter(replace(head, path=str(path)), model, n_threads=n_threads)
    else:
        want = make_drafter(head, model, n_threads=n_threads)
    assert found.n_bytes_own == want.n_bytes_own
    rows = np.random.default_rng(0).normal(size=(9, found.head.n_embd_tgt * len(found.boundaries))).astype(np.float32)
    drafts = []
    for drafter in (found, want):
        drafter.process_rows(rows, list(range(9)), 0)
        drafts.append((draft_chain(drafter, 7, N_STEPS), drafter.draft_logits.tolist()))
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("kind", [1, 15, 16, 24], ids=["F16", "Q8_K", "IQ2_XXS", "I8"])
def test_types_that_nothing_is_converted_to(kind, tiny_target, tiny_head, model_address):
    with pytest.raises(ValueError, match="matrices can be converted to f32, bf16, q8_0"):
        make_drafter(tiny_head, model_address(tiny_target.path), type=kind)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("ftype", ["f16", "bf16", "q8_0", "q4_0"])
def test_tables_in_fewer_bits(ftype, own, model_address, tiny_dir):
    target = write_target(tiny_dir / f"target-{ftype}-{own}.gguf", ftype=ftype)
    head = write_head(
        tiny_dir / f"head-{ftype}-{own}.gguf", target, ftype=ftype, n_vocab_dft=None, own_output=own, own_embd=own
    )
    drafter = make_drafter(head, model_address(target.path))
    check(drafter, ReferenceHead(head), TOLERANCE_WEIGHTS[ftype])


@pytest.mark.parametrize("n_layer", [1, 2])
@pytest.mark.parametrize("type_kv", TOLERANCE_KV)
def test_cache_in_fewer_bits(type_kv, n_layer, tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, head_dim=32, n_layer=n_layer)
    kind = GGML_TYPES[type_kv]
    drafter = make_drafter(head, model_address(tiny_target.path), type_k=kind, type_v=kind)
    check(drafter, ReferenceHead(head), TOLERANCE_KV[type_kv])


def test_keys_and_values_may_differ(tiny_target, model_address, tmp_path):
    head = write_head(tmp_path / "head.gguf", tiny_target, head_dim=32)
    drafter = make_drafter(head, model_address(tiny_target.path), type_k=GGML_TYPES["q8_0"], type_v=GGML_TYPES["f16"])
    check(drafter, ReferenceHead(head), TOLERANCE_KV["q8_0"])


def test_cache_is_f16_by_default(tiny_target, tiny_head, model_address):
    model = model_address(tiny_target.path)
    f32 = make_drafter(tiny_head, model).n_bytes_cache
    f16 = make_drafter(tiny_head, model, type_k=None, type_v=None).n_bytes_cache
    assert f32 == 2 * f16
