"""Targets with a block drafter: texts, sequences, states, errors, flags. Sampled text is in test_same_text.py."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest

from dflash import SHAPES, Able, Shape, random_tensors, shape_of, write_able, write_dflash
from drafting import draft_chain
from llama_cpp_eagle3 import Eagle3Llama, IncompatibleDraftError, ModelFileError, _core
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3_heads.convert import inspect
from loading import is_tie, load, load_plain, prompts, take
from tiny import Target, write_head, write_target

N_TOKENS = 40
CHAIN = {"draft": "chain", "draft_n_max": 6}
TREE = {"draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}
ROWS = ("llama", "gemma3", "qwen35")
"""Targets, of which one has windows, and one a recurrent state and M-RoPE."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dflash")


@pytest.fixture(scope="module", params=ROWS)
def pair(request: pytest.FixtureRequest, folder: Path) -> Able:
    return write_able(folder, request.param)


def test_what_drafts(pair: Able) -> None:
    with load(pair.target, pair.drafter, **CHAIN) as llm:
        assert "dflash, 6 tokens in one pass" in llm.loaded.description


def test_what_was_cancelled_goes_on(pair: Able) -> None:
    """A generation that was closed in the middle continues, and so does a prompt that begins as another one did."""
    plain = load_plain(pair.target)
    first, other = prompts(2, length=(30, 31), seed=4)
    with load(pair.target, pair.drafter, **CHAIN) as llm:
        for prompt in (first, [*first[:20], *other], first):
            with closing(llm.generate(prompt, temp=0.0)) as stream:
                for _ in range(7):
                    next(stream)
            is_tie(plain, prompt, take(plain, prompt, N_TOKENS), take(llm, prompt, N_TOKENS))
        assert llm.stats.accepted > 0.4 * llm.stats.drafted


@pytest.mark.parametrize("options", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ["dspark", "dspark-bonus", "dflash2"])
def test_texts_with_drafters_of_other_kinds(folder: Path, tiny_target: Target, name: str, options: dict) -> None:
    """With random drafters, alone and together, greedy or sampled, the text is that without them."""
    path = write_dflash(folder / f"{name}.gguf", SHAPES[name])
    texts = prompts(4, seed=8)
    sampling = [{"temperature": 0.0}, {"temperature": 0.8, "seed": 1}, {"temperature": 0.0}, {"seed": 2}]
    found = []
    for draft in ({"draft": "chain", "draft_n_max": 0}, options):
        with load(tiny_target, path, n_parallel=2, kv_unified=True, **draft) as llm:
            outputs = llm.generate_batch(texts, sampling, max_tokens=N_TOKENS)
            found.append([output.tokens for output in outputs])
            assert (llm.stats.of("dflash").drafted > 0) == (draft is options)
    assert found[0] == found[1]


def test_what_is_not_wanted_does_not_draft(folder: Path) -> None:
    pair = write_able(folder)
    (prompt,) = prompts(1)
    for sources in ((), ("ngram",)):
        with load(pair.target, pair.drafter, draft="auto", draft_sources=sources) as llm:
            take(llm, prompt, N_TOKENS)
            assert llm.stats.of("dflash").drafted == 0


def test_options(folder: Path) -> None:
    """Options of heads are refused; threads, devices and types of the cache are accepted."""
    pair = write_able(folder)
    (prompt,) = prompts(1)
    with load(pair.target, pair.drafter, **CHAIN) as llm:
        text = take(llm, prompt, N_TOKENS)
        assert llm.drafters[0].device == "CPU"
    more = {"draft_n_threads": 1, "draft_device": "CPU", "draft_type_k": "q8_0", "draft_type_v": "q8_0"}
    with load(pair.target, pair.drafter, **CHAIN, **more) as llm:
        assert take(llm, prompt, N_TOKENS) == text
        assert llm.stats.accepted > 0.4 * llm.stats.drafted
    with pytest.raises(ValueError, match="draft_target_layers is for heads"):
        load(pair.target, pair.drafter, **CHAIN, draft_target_layers=[1, 2])


def test_a_type_of_weights(pair: Able) -> None:
    """The block drafter's weights are converted into a copy, and the text stays the target's."""
    (prompt,) = prompts(1)
    with load(pair.target, pair.drafter, **CHAIN) as llm:
        text = take(llm, prompt, N_TOKENS)
    with load(pair.target, pair.drafter, **CHAIN, draft_type="q8_0") as llm:
        assert "-q8_0.gguf'" in llm.loaded.description
        assert take(llm, prompt, N_TOKENS) == text
        assert llm.stats.accepted > 0


def test_cpu_kernels(folder: Path, tiny_target: Target) -> None:
    """Our kernels multiply the drafter's own weights, and its drafts are those with ggml's."""
    path = write_dflash(folder / "q8_0.gguf", SHAPES["own-tables"], matrices=gguf.GGMLQuantizationType.Q8_0)
    (text,) = prompts(1, length=(30, 31))
    drafts = []
    for mode in ("on", "off"):
        with load(tiny_target, path, cpu_kernels=mode, **CHAIN) as llm:
            n_used = sum(llm.drafters[0].cpu_kernels.values())
            assert (n_used > 0) == (mode == "on" and bool(_core.cpu_kernel_names()))
            llm.eval(text)
            drafts.append(draft_chain(llm.drafters[0], 5, 6))
    assert drafts[0] == drafts[1]


def test_names_of_sources(folder: Path, tiny_target: Target) -> None:
    pair = write_able(folder)
    head = write_head(folder / "head.gguf", tiny_target)
    for drafter, sources, message in (
        (pair.drafter, ["mtp"], "'mtp', but a block drafter is given"),
        (pair.drafter, ["eagle3"], "'eagle3', but a block drafter is given"),
        (head, ["dflash"], "'dflash', but a head is given"),
        (None, ["dflash"], "'dflash', but no block drafter is given"),
    ):
        with pytest.raises(ValueError, match=message):
            load(pair.target, drafter, draft_sources=sources)


@pytest.mark.parametrize("options", [{"draft_n_max": 8}, {"draft_tree_depth": 9, "draft_tree_tokens": 12}])
def test_a_draft_longer_than_a_block(folder: Path, tiny_target: Target, options: dict) -> None:
    path = write_dflash(folder / "plain.gguf", SHAPES["plain"])
    with pytest.raises(ValueError, match="was trained to draft 7 tokens"):
        load(tiny_target, path, **options)


def test_drafters_of_other_targets(folder: Path, tiny_target: Target) -> None:
    """Another target's drafter is refused by name before anything is evaluated."""
    wide = write_target(folder / "wide.gguf", n_embd=96)
    small = write_target(folder / "small.gguf", n_vocab=312)
    path = write_dflash(folder / "plain.gguf", SHAPES["plain"])
    deep = write_dflash(folder / "deep.gguf", shape_of("plain", boundaries=(1, 9)))
    twice = write_dflash(folder / "twice.gguf", shape_of("plain", boundaries=(1, 1)))
    for target, drafter, message in (
        (wide, path, "reads hidden states of 64 values, the target .* has 96"),
        (small, path, "a vocabulary of 320 tokens, the target .* has 312"),
        (tiny_target, deep, "after 9 layers, which the target .* does not offer"),
        (tiny_target, twice, "after 1 layers twice"),
    ):
        with pytest.raises(IncompatibleDraftError, match=message):
            load(target, drafter)
    with pytest.raises(ModelFileError, match="is a block drafter, not a target"):
        load(path)


def bad_files(folder: Path) -> list[tuple[Path, str]]:
    shape = Shape()
    tensors = random_tensors(shape)
    mapped = shape_of("draft-vocab")
    with_d2t = random_tensors(mapped)
    n = iter(range(100))

    def write(of: Shape = shape, tensors: dict | None = None, **keys: object) -> Path:
        return write_dflash(folder / f"bad-{next(n)}.gguf", of, tensors, **keys)

    def lacking(name: str) -> dict:
        return {k: v for k, v in tensors.items() if k != name}

    return [
        (write(target_layers=None), "key 'dflash.target_layers': expected the layers"),
        (write(target_layers=[1, 2, 3]), r"tensor 'fc.weight': expected the shape \[192, 64\], found \[128, 64\]"),
        (write(block_size=1), "key 'dflash.block_size': expected 2 or more, found 1"),
        (write(block_size=0), "key 'dflash.block_size': expected a number in 1..1024, found 0"),
        (write(embedding_length=None), "key 'dflash.embedding_length' is missing"),
        (write(shape_of("plain", mask_token=None)), "key 'tokenizer.ggml.mask_token_id' is missing"),
        (write(shape_of("plain", mask_token=320)), r"mask_token_id': expected a token .* 0..319, found 320"),
        (write(tensors=lacking("fc.weight")), "tensor 'fc.weight' is missing"),
        (write(tensors=lacking("enc.output_norm.weight")), "tensor 'enc.output_norm.weight' is missing"),
        (write(tensors=lacking("blk.1.attn_q.weight")), "blk.1.attn_q.weight"),
        (write(tensors=lacking("output_norm.weight")), "output_norm.weight"),
        (write(**{"attention.value_length": 8}), "blk.0.attn_v.weight"),
        (write(hidden_activation="relu"), "hidden activation"),
        (write(logit_scale=-1.0), "dflash.logit_scale"),
        (write(mapped, {k: v for k, v in with_d2t.items() if k != "output.weight"}), "tensor 'output.weight' is miss"),
        (write(mapped, with_d2t | {"d2t": with_d2t["d2t"] + 300}), "tensor 'd2t': expected different tokens"),
        (write(mapped, with_d2t | {"d2t": 0 * with_d2t["d2t"]}), "tensor 'd2t': .* found 0 twice"),
        (write(mapped, with_d2t | {"d2t": with_d2t["d2t"].astype(np.int32)}), r"tensor 'd2t': .* \(i32\)"),
        (write(shape_of("dspark"), block_size=None), "key 'dflash.block_size' is missing"),
        (write(shape_of("dflash2"), selector_top_k=None), "key 'dflash.selector_top_k' is missing"),
        (write(shape_of("dflash2"), conv_kernel_size=None), "conv/selector metadata"),
        (write(shape_of("dflash2"), selector_top_k=9), "selector lattice"),
        (write(shape_of("dspark"), sample_from_anchor=False, block_size=1), "expected 2 or more, found 1"),
        (write(**{"hyper_connection.count": 4}), "DeepSeek-V4's layers .* it does not draft here yet"),
    ]


def test_files_without_what_they_need(folder: Path, tiny_target: Target) -> None:
    for path, message in bad_files(folder):
        with pytest.raises(ModelFileError, match=message) as e:
            load(tiny_target, path)
        assert str(path) in str(e.value)


def test_inspect_says_what_a_file_is(folder: Path, tiny_target: Target) -> None:
    path = write_dflash(folder / "window.gguf", SHAPES["window"])
    report = inspect(path, tiny_target.path)
    facts = dict(report.facts)
    assert facts["boundaries"] == "[1, 3]"
    assert facts["block"] == "8 rows that see all of each other: 7 tokens in one pass"
    assert facts["size"] == "3 layer(s) of width 64, sliding window 12"
    assert facts["shared with target"] == "token embedding, lm_head"
    assert facts["fits target.gguf"] == "yes"
    deep = write_dflash(folder / "deep.gguf", shape_of("plain", boundaries=(1, 9)))
    assert "after 9 layers" in str(inspect(deep, tiny_target.path).misfit)


def test_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-md with --spec-type draft-dflash, which is the default with such a file, drafts; doctor names it."""
    pair = write_able(folder)
    model = ["-m", str(pair.target), "-md", str(pair.drafter)]
    common = ["-p", "abc", "-n", "12", "-c", "256", "--temp", "0", "-t", "1", "--json", "-"]
    for more in ([], ["--spec-type", "draft-dflash"]):
        assert main(["speculative-simple", *model, "--spec-draft-n-max", "3", "--baseline", *common, *more]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["drafted"] > 0
        assert report["baseline"]["drafted"] == 0
    assert main(["speculative-simple", *model, "--spec-type", "none", *common]) == 0
    assert json.loads(capsys.readouterr().out)["drafted"] == 0
    assert main(["speculative-simple", *model, "--spec-type", "draft-eagle3", *common]) != 0
    assert "names draft-eagle3, but a block drafter is given" in capsys.readouterr().err
    main(["doctor", *model, "-t", "1"])
    assert "dflash, 6 tokens in one pass, reads [1, 2]" in capsys.readouterr().out


def test_plain_loading(folder: Path) -> None:
    """Loading with all defaults works."""
    pair = write_able(folder)
    with Eagle3Llama(str(pair.target), str(pair.drafter), verbose=False, n_ctx=256, n_threads=1) as llm:
        assert llm.draft == "auto"
        assert llm.draft_n_max == 16
        assert llm.create_completion("abc", max_tokens=8, temperature=0.0)["choices"]
