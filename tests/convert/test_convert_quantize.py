"""Types of the matrices: ggml quantizes them, other tensors stay exact, and the head's drafts stay the same."""

from collections import Counter

import gguf
import numpy as np
import pytest

from checkpoints import FAMILIES, write_family
from drafting import SideBySide, draft_chain, make_drafter, rel_error
from llama_cpp_eagle3 import ModelFileError, _core
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3_heads.convert import convert, count_tokens, encoding, inspect, quantize
from reference import ReferenceHead
from tiny import Head, write_head, write_target

# largest relative error that a type may cause in a random head's first logits
LIMITS = {"f32": 1e-4, "f16": 0.01, "bf16": 0.05, "q8_0": 0.05, "q6_k": 0.15, "q4_k": 0.6, "q4_0": 0.6}

_CUT = ("output.weight", "d2t")


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("quantize") / "target.gguf", n_layer=8, n_embd=256)


@pytest.fixture(scope="session")
def head(tmp_path_factory, target):
    folder = tmp_path_factory.mktemp("quantize-head")
    variant = FAMILIES["specforge"].variant | {"n_ff": 512, "n_vocab_dft": 256}
    head = write_head(folder / "unused.gguf", target, **variant)
    write_family(folder / "head", FAMILIES["specforge"], head)
    return folder / "head", head


def tensors(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def check(path, outtype, head: Head, model_tgt):
    found = tensors(path)
    for name, tensor in found.items():
        if name == "d2t":
            assert tensor.tensor_type.name == "I64"
            assert np.array_equal(tensor.data, head.d2t)
        else:
            is_matrix = len(tensor.shape) == 2
            assert tensor.tensor_type.name == (outtype.upper() if is_matrix else "F32"), name
    assert np.array_equal(found["output_norm.weight"].data, head.weights["norm.weight"].astype(np.float32))

    drafter = make_drafter(Head(str(path), head.arch, head.variant, head.target, head.weights, head.d2t), model_tgt)
    reference = ReferenceHead(head)
    rng = np.random.default_rng(3)
    rows = rng.normal(0.0, 2.0, (8, head.n_embd_inp)).astype(np.float32)
    for side in (drafter.process_rows, reference.process):
        side(rows, [1, 2, 3, 4, 5, 6, 7, 8], 0)
    draft_chain(drafter, 9, 1)
    assert rel_error(drafter.draft_logits, reference.propose(9, 1).logits[0]) < LIMITS[outtype]


@pytest.mark.parametrize("outtype", LIMITS)
def test_convert_to(outtype, tmp_path, head, target, model_address):
    path = convert(head[0], target.path, tmp_path / "out.gguf", outtype=outtype).path
    check(path, outtype, head[1], model_address(target.path))


@pytest.mark.parametrize("outtype", LIMITS)
def test_quantize_a_gguf(outtype, tmp_path, head, target, model_address, capsys):
    source = convert(head[0], target.path, tmp_path / "f32.gguf", outtype="f32").path
    out = tmp_path / "out.gguf"
    assert main(["quantize", str(source), str(out), outtype]) == 0
    assert "MB" in capsys.readouterr().out
    check(out, outtype, head[1], model_address(target.path))
    before, after = gguf.GGUFReader(source).fields, gguf.GGUFReader(out).fields
    for key in before:
        if not key.startswith("GGUF.") and key != "general.file_type":
            assert after[key].contents() == before[key].contents(), key
    # the bits that convert writes from the same numbers
    direct = tensors(convert(head[0], target.path, tmp_path / "direct.gguf", outtype=outtype).path)
    assert all(np.array_equal(t.data, direct[name].data) for name, t in tensors(out).items())


def test_rows_that_do_not_fit_a_block(tmp_path):
    assert encoding.type_of((8, 96), "q4_k").name == "Q8_0"
    assert encoding.type_of((8, 96), "q6_k").name == "Q8_0"
    assert encoding.type_of((8, 40), "q4_0").name == "F16"
    assert encoding.type_of((8,), "q4_k").name == "F32"


def test_q8_0_is_ggufs_own(rng):
    values = rng.normal(0.0, 1.0, (16, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    assert np.array_equal(encoding.encode(values, kind), gguf.quants.quantize(values, kind))


def test_quantize_refuses_other_files(tmp_path, target):
    with pytest.raises(ModelFileError, match="expected an EAGLE-3 head"):
        quantize(target.path, tmp_path / "out.gguf", "q8_0")
    with pytest.raises(ValueError, match="outtype"):
        quantize(target.path, tmp_path / "out.gguf", "q3_k")
    assert list(tmp_path.iterdir()) == []


def test_fork_dialect_stays_what_it_is(tmp_path, target, model_address):
    head = write_head(
        tmp_path / "fork.gguf", target, dialect="fork", fc_norm=True, norm_output=True, boundaries=(2, 4, 5)
    )
    assert "written for another llama.cpp" in str(inspect(head.path, target.path))
    quantize(head.path, tmp_path / "out.gguf", "q8_0")
    made = _core.read_head(str(tmp_path / "out.gguf"))
    assert (made.dialect, made.boundaries, made.norm_output) == ("fork", [2, 4, 5], True)
    drafters = [
        make_drafter(
            Head(str(path), head.arch, head.variant, target, head.weights, head.d2t), model_address(target.path)
        )
        for path in (head.path, tmp_path / "out.gguf")
    ]
    for drafter in drafters:
        drafter.process_rows(np.ones((3, head.n_embd_inp), np.float32), [1, 2, 3], 0)
        draft_chain(drafter, 4, 1)
    assert rel_error(drafters[1].draft_logits, drafters[0].draft_logits) < LIMITS["q8_0"]


@pytest.mark.parametrize("variant", [{}, {"n_vocab_dft": None}, {"dialect": "fork"}, {"mask_token": 5}], ids=str)
def test_fewer_tokens_to_draft(variant, tmp_path, target, model_address):
    """The head drafts the best of the remaining tokens, as if its lm_head had no rows for the others."""
    head = write_head(tmp_path / "head.gguf", target, **variant)
    ids = np.arange(target.n_vocab) if head.d2t is None else head.d2t
    counts = Counter({int(ids[i]): 10 - i % 3 for i in range(len(ids) - 1, 20, -5)})
    out = quantize(head.path, tmp_path / "out.gguf", "f32", draft_vocab=12, counts=counts)
    kept = sorted(sorted(map(int, ids), key=lambda t: (-counts[t], t))[:12])
    rows = [int(np.flatnonzero(ids == token)[0]) for token in kept]
    before, after = tensors(head.path), tensors(out)
    assert np.array_equal(after["output.weight"].data, before["output.weight"].data[rows])
    assert all(np.array_equal(after[name].data, t.data) for name, t in before.items() if name not in _CUT)

    weights = head.weights | {"lm_head.weight": head.weights["lm_head.weight"][rows]}
    cut = Head(str(out), head.arch, head.variant, target, weights, np.array(kept))
    drafter = make_drafter(cut, model_address(target.path))
    assert drafter.n_vocab_dft == 12
    side = SideBySide(drafter, ReferenceHead(cut))
    side.process(9)
    for id_last in range(8):
        got, want = draft_chain(drafter, id_last, 3), side.reference.propose(id_last, 3)
        assert got == want.ids


def test_which_tokens_to_draft(tmp_path, target, capsys):
    head = write_head(tmp_path / "head.gguf", target, n_vocab_dft=None)
    (tmp_path / "text").write_text("abca abc ab a")
    options = ["--draft-vocab", "3", "--vocab-text", str(tmp_path / "text"), "--target", target.path]
    assert main(["quantize", head.path, str(tmp_path / "out.gguf"), "f32", *options]) == 0
    counts = count_tokens(target.path, ["abca abc ab a"])
    kept = sorted(sorted(counts, key=lambda token: (-counts[token], token))[:3])
    assert len(counts) > 3
    assert tensors(tmp_path / "out.gguf")["d2t"].data.tolist() == kept
    capsys.readouterr()
    for wrong in (options[:4], options[2:]):
        assert main(["quantize", head.path, str(tmp_path / "no.gguf"), "f32", *wrong]) == 2
        assert "--vocab-text needs" in capsys.readouterr().err
    (tmp_path / "text").write_text("")
    assert main(["quantize", head.path, str(tmp_path / "no.gguf"), "f32", *options]) == 2
    assert f"--vocab-text: expected text in '{tmp_path / 'text'}', found none" in capsys.readouterr().err
    for n in (0, target.n_vocab):
        with pytest.raises(ValueError, match="expected a draft vocabulary of 1 to"):
            quantize(head.path, tmp_path / "no.gguf", "f32", draft_vocab=n)
    shared = write_head(tmp_path / "shared.gguf", target, n_vocab_dft=None, own_output=False)
    with pytest.raises(ModelFileError, match="shares the target's lm_head"):
        quantize(shared.path, tmp_path / "no.gguf", "f32", draft_vocab=9)
    assert not (tmp_path / "no.gguf").exists()
