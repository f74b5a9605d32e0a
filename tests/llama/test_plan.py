"""What is decided before weights are read, by arguments and headers alone: nothing is loaded here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llama_cpp_eagle3._core import read_target
from llama_cpp_eagle3.config.eagle3_options import DEFAULTS
from llama_cpp_eagle3.draft.kinds import Place, SmallModel
from llama_cpp_eagle3.draft.kinds.dflash import BlockDrafter
from llama_cpp_eagle3.draft.kinds.eagle3 import Eagle3Head
from llama_cpp_eagle3.draft.kinds.fit import Vocabulary
from llama_cpp_eagle3.draft.kinds.mtp import MtpBlock
from llama_cpp_eagle3.model.pair import Headers, read_headers
from llama_cpp_eagle3.model.plan import LoadPlan, Room, plan


def drafter(kind: type, boundaries: tuple[int, ...] = (), *, in_target: bool = False, **fields: Any) -> Any:
    """Return a drafter's file of a kind, which fits any target."""

    class Known(kind):  # type: ignore[misc]
        is_in_target = in_target

        def __init__(self) -> None:
            self.path, self.info = "draft.gguf", target()
            self.__dict__.update(fields)

        def fit(self, *_: Any) -> tuple[int, ...]:
            return boundaries

    return Known()


def target(**fields: Any) -> Any:
    usual = {"path": "target.gguf", "arch": "llama", "n_layer": 4, "n_layer_gone": 0, "boundaries": [0, 1, 2, 3, 4, 5]}
    usual |= {"why_no_text": "", "why_no_target": "", "keys_without_block": {}, "unknown_ids": {}}
    return SimpleNamespace(**usual | fields)


HEAD, SMALL, BLOCKS = drafter(Eagle3Head, (1, 2, 3)), drafter(SmallModel), drafter(BlockDrafter, n_draft_max=7)
OWN = drafter(MtpBlock, (5,), in_target=True)


def planned(*files: Any, file: Any = None, has_block: bool = False, of: Any = None, **options: Any) -> LoadPlan:
    """Plan to load a target, which may have a block of its own, and drafters' files."""
    files = tuple(each for each in (*files, *(file if isinstance(file, tuple) else (file,))) if each is not None)
    given: Any = {**DEFAULTS, **options, "draft_model_path": [each.path for each in files]}
    return plan("target.gguf", given, Headers(of or target(), files, OWN, has_block))


@pytest.mark.parametrize(
    ("options", "sources", "drafts", "mode", "n_max"),
    [
        ({}, ("ngram", "grammar"), (), "auto", 8),
        ({"file": HEAD}, ("eagle3", "ngram", "grammar"), (HEAD,), "auto", 8),
        ({"file": BLOCKS}, ("dflash", "ngram", "grammar"), (BLOCKS,), "auto", 16),
        ({"has_block": True}, ("mtp", "ngram", "grammar"), (OWN,), "auto", 8),
        ({"has_block": True, "file": SMALL}, ("simple", "ngram", "grammar"), (SMALL,), "auto", 8),
        ({"has_block": True, "draft_target_layers": [1]}, ("ngram", "grammar"), (), "auto", 8),
        ({"has_block": True, "embedding": True}, (), (), "auto", 8),
        ({"file": HEAD, "draft_sources": ("eagle3", "mtp")}, ("eagle3", "mtp"), (HEAD, OWN), "auto", 8),
        ({"file": HEAD, "draft_sources": ("mtp", "eagle3")}, ("mtp", "eagle3"), (OWN, HEAD), "auto", 8),
        ({"file": HEAD, "draft_sources": ("ngram",)}, ("ngram",), (HEAD,), "auto", 8),
        ({"file": (HEAD, SMALL)}, ("eagle3", "simple", "ngram", "grammar"), (HEAD, SMALL), "auto", 8),
        ({"file": (SMALL, HEAD)}, ("simple", "eagle3", "ngram", "grammar"), (SMALL, HEAD), "auto", 8),
        (
            {"file": (HEAD, SMALL), "draft_sources": ("simple", "eagle3")},
            ("simple", "eagle3"),
            (SMALL, HEAD),
            "auto",
            8,
        ),
        ({"draft_sources": ("eagle3", "ngram")}, ("ngram",), (), "auto", 8),
        ({"draft_sources": ()}, (), (), "auto", 8),
        ({"draft_n_max": 0}, (), (), "chain", 0),
        ({"draft_n_max": 4}, ("ngram", "grammar"), (), "auto", 4),
        ({"file": HEAD, "draft_n_max": 4}, ("eagle3", "ngram", "grammar"), (HEAD,), "chain", 4),
        ({"file": HEAD, "draft_p_min": 0.5}, ("eagle3", "ngram", "grammar"), (HEAD,), "chain", 3),
        ({"file": HEAD, "draft_tree_topk": 2}, ("eagle3", "ngram", "grammar"), (HEAD,), "tree", 3),
        ({"of": target(why_no_text="it embeds")}, (), (), "auto", 8),
        ({"vocab_only": True}, (), (), "auto", 8),
    ],
)
def test_who_drafts(options: dict[str, Any], sources: Any, drafts: Any, mode: str, n_max: int) -> None:
    p = planned(**options)
    assert (p.settings.sources, p.drafts, p.settings.mode, p.settings.n_max) == (sources, drafts, mode, n_max)
    assert p.draft_path == (None if all(file.is_in_target for file in drafts) else "draft.gguf")
    assert (p.why_nothing_drafts == "") == bool(sources or drafts)


def test_what_drafters_read() -> None:
    """The target gives the boundaries of all drafters; their files have ids in order."""
    both = planned(HEAD, draft_sources=("eagle3", "mtp"))
    assert both.pair is not None
    assert both.pair.boundaries == (1, 2, 3, 5)
    assert both.ids(str.upper) == ("TARGET.GGUF", "DRAFT.GGUF+mtp")
    none = both.without_drafters()
    assert (none.drafts, none.settings.sources, none.draft_path) == ((), (), None)
    assert none.ids(str.upper) == ("TARGET.GGUF", "")
    assert planned(HEAD).without_drafters().settings.sources == ("ngram", "grammar")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"draft_sources": "ngram"}, "expected draft_sources to be a list (of one of eagle3, mtp"),
        ({"draft_sources": ("simple",)}, "names 'simple', but no small model is given"),
        ({"file": SMALL, "draft_sources": ("eagle3",)}, "names 'eagle3', but a small model is given"),
        ({"file": HEAD, "draft_sources": ("mtp",)}, "but a head is given as draft_model_path: name 'eagle3'"),
        ({"file": (HEAD, SMALL), "draft_sources": ("simple",)}, "a head and a small model is given .* 'eagle3' and"),
        ({"file": (SMALL, SMALL)}, "expected drafters of different kinds, found 'draft.gguf' .small model., 'draft"),
        ({"file": HEAD, "embedding": True}, "embedding and draft_model_path exclude each other"),
        ({"draft_sources": ("mtp",), "vocab_only": True}, "vocab_only and 'mtp' in draft_sources exclude each other"),
        ({"vocab_only": True, "embedding": True}, "vocab_only and embedding exclude each other"),
        ({"draft_n_min": 9}, "expected draft_n_min <= draft_n_max"),
        ({"draft_tree_tokens": 2}, "draft_tree_depth <= draft_tree_tokens"),
        ({"n_parallel": 257}, "room for 256 sequences"),
        ({"n_parallel": 9, "n_ubatch": 8}, "need batches of that size"),
        ({"n_parallel": 9, "n_ctx": 8}, "n_parallel=9 sequences need as many tokens of context, found n_ctx=8"),
        ({"n_batch": 0}, "n_batch >= 1"),
        ({"type_v": "q8_0", "flash_attn": False}, "use flash_attn=True too"),
        ({"file": HEAD, "draft_tree_topk": 2, "n_parallel": 2, "kv_unified": False}, "need a shared cache"),
        ({"file": HEAD, "draft_n_ctx": 64}, "draft_n_ctx is for small models: a head has"),
        ({"has_block": True, "draft_type": "q4_0"}, "are for heads: a block of the target"),
        ({"file": SMALL, "draft_target_layers": [1]}, "draft_target_layers is for heads: the file of a small model"),
        ({"file": HEAD, "draft_n_max": 40, "n_batch": 32}, "draft_n_max=40 needs batches of 41 tokens"),
        ({"file": BLOCKS, "draft_n_max": 8}, "draft_n_max=8: the block drafter 'draft.gguf' was trained to draft 7"),
        ({"lora": ["/no/such.gguf"]}, "'/no/such.gguf' is missing"),
    ],
)  # fmt: skip
def test_what_cannot_be(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("(", r"\(")):
        planned(**options)


def test_arguments() -> None:
    with pytest.raises(TypeError, match="Did you mean 'n_ctx'"):
        planned(n_ctxx=5)
    with pytest.raises(TypeError, match="draft_model takes a LlamaDraftModel"):
        planned(draft_model="head.gguf")
    p = planned(HEAD, type_k="q8_0", draft_type="q4_0", devices="CUDA0, CUDA1", rpc_servers=["h:1"], mmproj_path="m")
    assert (p.options["type_k"], p.draft_type, p.devices) == (8, 2, ("CUDA0", "CUDA1"))
    assert (p.options["n_gpu_layers"], p.options["chat_format"]) == (-1, "auto")
    assert planned().options["n_threads_batch"] == planned().options["n_threads"] > 0


def test_notes() -> None:
    """What has no effect or is mended is told before anything is loaded."""
    no_text = target(why_no_text="it embeds")
    assert planned(of=no_text).notes == ()
    assert planned(of=no_text, draft_sources=("ngram",)).notes == (
        "n-grams do not draft for 'target.gguf' (llama): it embeds",
    )
    gone = planned(of=target(n_layer_gone=1, keys_without_block={"llama.block_count": 3}), kv_overrides={"a": 1})
    assert "that are not in it: it is loaded with llama.block_count = 3" in gone.notes[0]
    assert gone.options["kv_overrides"] == {"llama.block_count": 3, "a": 1}
    warned = drafter(SmallModel, vocabulary=Vocabulary(warning="nearly"))
    notes = planned(warned, rope_freq_base=5e5).notes
    assert notes == ("nearly", "rope_freq_base: for the target and the small model")
    assert planned(HEAD, SMALL).notes == ()
    assert planned(HEAD, SMALL, draft_n_max=4).notes == (
        "chains and trees of a fixed size are the head's: the small model drafts in auto alone",
    )
    assert planned(HEAD, rope_freq_base=5e5).notes == (
        "rope_freq_base: for the target; the head rotates as its file says",
    )
    assert planned(draft="chain").without_effect.startswith("nothing is drafted: chains of a fixed size")
    assert planned(draft_p_min=0.5).without_effect.startswith("draft_p_min: for a drafter with weights")
    assert planned(HEAD, draft_p_min=0.5).without_effect == ""


def rooms(p: LoadPlan, **sizes: Any) -> Room:
    usual = {"n_swa": 0, "swa_full": True, "has_states": False, "n_ubatch": 512, "on_cpu": True}
    return p.room(**usual | sizes)


def test_room() -> None:
    """Ids for slots, leaves of trees and guards of windows; snapshots for the drafts of recurrent targets."""
    tree = {"draft_tree_tokens": 12}
    assert rooms(planned(draft_sources=())) == Room(1)
    assert rooms(planned(HEAD)) == Room(8)
    assert rooms(planned(HEAD, **tree)) == Room(12)
    assert rooms(planned(HEAD, **tree, n_parallel=4)) == Room(15)
    assert rooms(planned(HEAD, n_parallel=4)) == Room(4)  # streams
    assert rooms(planned(HEAD, n_parallel=4, kv_unified=True)) == Room(11)
    assert rooms(planned(HEAD, n_parallel=4, kv_unified=True), n_ubatch=6) == Room(6)
    assert rooms(planned(HEAD), n_swa=16, swa_full=False) == Room(1)  # no trees
    assert rooms(planned(HEAD, n_parallel=4, kv_unified=True), n_swa=16) == Room(15, n_guards=4)
    crowded = rooms(planned(HEAD, n_parallel=4, kv_unified=True), n_swa=16, n_ubatch=7)
    assert (crowded.n_seq, crowded.n_guards) == (7, 0)
    assert crowded.note.endswith("n_ubatch of at least 8 prevents that")
    both = rooms(planned(HEAD, n_parallel=4, kv_unified=True), n_swa=16, has_states=True)
    assert (both.n_seq, both.n_guards, both.may_pool) == (4, 0, False)
    assert "gives each of 4 sequences cells of its own" in both.note
    assert rooms(planned(HEAD), n_swa=16, has_states=True).may_pool  # of one sequence
    for n_parallel, on_cpu, file, n_states in (
        (1, True, HEAD, 3), (4, True, HEAD, 1), (5, True, HEAD, 0), (5, False, HEAD, 1), (1, True, None, 0),
    ):  # fmt: skip
        p = planned(file, n_parallel=n_parallel)
        assert rooms(p, has_states=True, on_cpu=on_cpu) == Room(n_parallel, n_states), p
    assert rooms(planned(HEAD, draft_n_max=2), has_states=True) == Room(1, 2)


def test_a_header_is_read_once(tiny_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading that of a large vocabulary takes a twelfth of a second."""
    read = []
    for module in ("model.pair", "draft.kinds", "draft.kinds.mtp"):
        monkeypatch.setattr(
            f"llama_cpp_eagle3.{module}.read_target", lambda path: read.append(path) or read_target(path)
        )
    headers = read_headers(tiny_target.path, ())
    assert (read, headers.has_block, headers.drafts) == ([tiny_target.path], False, ())


@pytest.mark.parametrize(
    ("device", "n_gpu_layers", "of_target", "n_layers", "on_cpu"),
    [(None, -1, 0, 0, True), (None, -1, 9, 999, False), (None, 0, 9, 0, True), (None, 3, 0, 3, False),
     ("CPU", -1, 9, 0, True), ("GPU0", -1, 0, 999, False), ("GPU0", 2, 0, 2, False)],
)  # fmt: skip
def test_where_a_drafter_runs(
    device: str | None, n_gpu_layers: int, of_target: int, n_layers: int, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_cpp_eagle3.draft.kinds.kind.local_accelerators", lambda: ["GPU0"])
    named: Any = None if device is None else SimpleNamespace(name=device)
    place = Place(
        model=0, ctx=0, model_params=SimpleNamespace(n_gpu_layers=of_target), context_params=None, n_vocab=1, n_ctx=1,
        n_seq=1, is_pooled=True, has_trees=False, n_threads=1, n_gpu_layers=n_gpu_layers, device=named,
    )  # fmt: skip
    assert (place.n_layers, place.is_on_cpu) == (n_layers, on_cpu)
    monkeypatch.setattr("llama_cpp_eagle3.draft.kinds.kind.local_accelerators", list)
    assert place.is_on_cpu == (device is None or device == "CPU")
