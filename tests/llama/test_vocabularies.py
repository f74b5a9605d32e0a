"""Drafters whose vocabulary is nearly the target's draft common tokens only, and a warning names the difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drafting import draft_chain
from drafting import make_drafter as make_eagle3
from gguf_raw import BOOL, STR, U32, RawFile, parse, serialize
from llama_cpp_eagle3 import IncompatibleDraftError
from llama_cpp_eagle3.doctor import check_files
from llama_cpp_eagle3_heads.convert import inspect
from loading import load, load_plain, take
from small import make_drafter as make_simple
from small import write_small_pair
from tiny import write_head, write_target

TOKENS = "tokenizer.ggml.tokens"
CHAIN = {"draft": "chain", "draft_n_max": 4}


def changed(path: str | Path, out: Path, change: Callable[[RawFile], None]) -> str:
    raw = parse(Path(path).read_bytes())
    change(raw)
    out.write_bytes(serialize(raw))
    return str(out)


def rename(*ids: int) -> Callable[[RawFile], None]:
    def change(raw: RawFile) -> None:
        tokens = list(raw.get(TOKENS))
        for i in ids:
            tokens[i] = b"<|renamed_%d|>" % i
        raw.find(TOKENS).value = tokens

    return change


def other_eos(raw: RawFile) -> None:
    raw.set("tokenizer.ggml.eos_token_id", U32, 5)
    raw.set("tokenizer.ggml.add_eos_token", BOOL, 1)


def other_bos(raw: RawFile) -> None:
    raw.set("tokenizer.ggml.add_bos_token", BOOL, 0 if raw.get("tokenizer.ggml.add_bos_token") else 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename(306), "token 306 is"),
        (rename(306, 307, 308), "3 tokens have other texts"),
        (other_eos, "tokenizer.ggml.add_eos_token is false of the target and true of the draft"),
        (other_bos, "tokenizer.ggml.add_bos_token"),
    ],
)
def test_trifles_of_a_small_model(
    change: Callable[[RawFile], None], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, small = write_small_pair(tmp_path)
    small = changed(small, tmp_path / "changed.gguf", change)
    plain = load_plain(target)
    want = take(plain, [1, 2, 3], 24)
    plain.close()
    with load(target, small, **CHAIN) as llm:
        assert take(llm, [1, 2, 3], 24) == want
        assert llm.stats.of("simple").accepted > 0
    assert caplog.text.count("is nearly that of") == 1
    assert words in caplog.text
    report = inspect(small, target)
    assert report.misfit is None
    assert words in str(report)
    assert any(f.level == "warning" and words in f.text for f in check_files(target, [small]))


@pytest.mark.parametrize("n_tgt", [322, 318])
@pytest.mark.parametrize(
    "variant", [{}, {"own_embd": True}, {"n_vocab_dft": None}, {"n_vocab_dft": None, "own_output": True}]
)
def test_a_target_with_other_tokens_at_the_end(
    n_tgt: int, variant: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A fine-tune's further tokens, which the head lacks, are neither read nor drafted by it."""
    head = write_head(tmp_path / "head.gguf", write_target(tmp_path / "old.gguf"), boundaries=(1, 2, 3), **variant)
    target = write_target(tmp_path / "new.gguf", n_vocab=n_tgt)
    plain = load_plain(target.path)
    prompt = [1, 2, n_tgt - 1, 4]
    want = take(plain, prompt, 24)
    plain.close()
    for draft in ({"draft": "chain"}, {"draft": "tree", "draft_tree_topk": 4}):
        with load(target.path, head.path, **draft) as llm:
            assert take(llm, prompt, 24) == want
            assert llm.stats.of("eagle3").drafted > 0
    assert f"2 tokens are in one of both alone ({n_tgt} and 320 in all)" in caplog.text


def test_a_small_model_with_fewer_tokens(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", n_vocab=322)
    small = write_target(tmp_path / "small.gguf", n_vocab=320, seed=0)
    plain = load_plain(target.path)
    want = take(plain, [1, 2, 321], 24)
    plain.close()
    with load(target.path, small.path, **CHAIN) as llm:
        assert take(llm, [1, 2, 321], 24) == want
        assert llm.stats.of("simple").drafted > 0


def test_other_tokenizers_stay_an_error(tmp_path: Path) -> None:
    """Too many tokens have other texts, or the kind or the size differs."""
    target, small = write_small_pair(tmp_path)
    many = changed(small, tmp_path / "many.gguf", rename(*range(100, 104)))
    with pytest.raises(IncompatibleDraftError, match=r"another tokenizer .* 4 of \d+ tokens differ"):
        load(target, many)
    kind = changed(small, tmp_path / "kind.gguf", lambda raw: raw.set("tokenizer.ggml.model", STR, b"llama"))
    with pytest.raises(IncompatibleDraftError, match="'gpt2' of the target and 'llama' of the draft"):
        load(target, kind)
    head = write_head(tmp_path / "head.gguf", write_target(tmp_path / "t.gguf"), boundaries=(1, 2, 3))
    with pytest.raises(IncompatibleDraftError, match=r"a vocabulary of 320 tokens, the target .* has 340"):
        load(write_target(tmp_path / "u.gguf", n_vocab=340).path, head.path)


def test_left_out_tokens_are_not_drafted(tmp_path: Path) -> None:
    """Neither chains nor trees draft them, with a small model and with a head."""
    drafter = make_simple(write_small_pair(tmp_path)[1])
    drafter.process(None, [1, 2, 3], 0)
    first = draft_chain(drafter, 4, 1)[0]
    drafter.begin([0], [4], 4, 1)
    nodes = [node[1] for node in drafter.nodes]
    assert nodes[0] == first
    drafter.leave_out([9999, first])
    drafter.begin([0], [4], 4, 1)
    assert [node[1] for node in drafter.nodes] == nodes[1:]
    assert draft_chain(drafter, 4, 3) == []


@pytest.mark.parametrize("n_vocab_dft", [None, 96])
@pytest.mark.parametrize("n_unroll", [1, 4])
def test_left_out_tokens_of_a_head(
    n_unroll: int, n_vocab_dft: int | None, tmp_path: Path, model_address: Callable[[str | Path], int]
) -> None:
    target = write_target(tmp_path / "target.gguf")
    head = write_head(tmp_path / "head.gguf", target, n_vocab_dft=n_vocab_dft)
    drafter = make_eagle3(head, model_address(target.path), n_unroll=n_unroll)
    rows = np.random.default_rng(0).normal(size=(4, 3 * target.n_embd)).astype(np.float32)
    drafter.process_rows(rows, [1, 2, 3, 4], 0)
    chain = draft_chain(drafter, 5, 4)
    drafter.leave_out([chain[2]])
    again = draft_chain(drafter, 5, 4)
    assert chain[2] not in again
    assert again == chain[: 2 if chain[2] not in chain[:2] else chain.index(chain[2])]
    drafter.begin([0], [5], 3, n_unroll)
    assert chain[2] not in [node[1] for node in drafter.nodes]
