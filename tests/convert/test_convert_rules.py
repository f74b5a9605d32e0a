"""Layer ids, harmful defaults, the draft vocabulary: every rule and every trap by itself."""

import json

import gguf
import numpy as np
import pytest

from checkpoints import FAMILIES, Family, layer_config, speculators_config, top_config, write_family
from drafting import draft_chain
from llama_cpp_eagle3 import IncompatibleDraftError, ModelFileError, _core
from llama_cpp_eagle3.llama import Eagle3Llama
from llama_cpp_eagle3_heads.convert import convert, inspect
from llama_cpp_eagle3_heads.convert.boundaries import IDS_KEY, Ids, choose
from llama_cpp_eagle3_heads.convert.checkpoint import canonical_name
from tiny import write_head, write_target

N = 36


def ids(values, **changes) -> Ids:
    plain = {
        "nested": False,
        "are_outputs": False,
        "is_speculators": False,
        "is_modelopt": False,
        "target_is_gpt_oss": False,
        "n_layer_tgt": N,
    }
    return Ids(values=values, **(plain | changes))


NESTED, GPT_OSS = {"nested": True}, {"nested": True, "target_is_gpt_oss": True}


@pytest.mark.parametrize(
    ("given", "boundaries", "doubtful", "word"),
    [
        (ids(None), (2, 18, 33), False, "default"),
        (ids((2, 18, 33), is_speculators=True), (2, 18, 33), False, "speculators"),
        # nm-testing's Maverick and Qwen3-235B have another trainer's ids in the speculators format
        (ids((1, 23, 44), is_speculators=True, n_layer_tgt=48), (1, 23, 44), True, "speculators"),
        (ids((1, 17, 32), **NESTED), (2, 18, 33), False, "layer outputs"),
        (ids((2, 18, 33), **NESTED), (2, 18, 33), True, "do not begin with 1"),
        (ids((2, 18, 33)), (2, 18, 33), False, "top-level"),
        (ids((1, 17, 32)), (1, 17, 32), True, "top-level"),
        # NVIDIA's gpt-oss heads: v3 reads the last layer's output, SGLang reads long-context's ids as boundaries
        (ids((24, 30, 36), is_modelopt=True, **GPT_OSS), (24, 30, 36), False, "layer count"),
        (ids((1, 17, 32), is_modelopt=True, **GPT_OSS), (1, 17, 32), True, "gpt-oss"),
        # SpecForge's gpt-oss-20b config
        (ids((1, 11, 21), n_layer_tgt=24, **GPT_OSS), (2, 12, 22), True, "gpt-oss"),
        # SpecForge's deepseek-v3 config, L = 61
        (ids((1, 29, 57), n_layer_tgt=61, **NESTED), (2, 30, 58), False, "layer outputs"),
        # DeepSpec's key has one meaning, also if an id is the last layer's
        (ids((8, 17, 35), are_outputs=True), (9, 18, 36), False, "DeepSpec"),
    ],
)
def test_boundary_rules(given, boundaries, doubtful, word):
    choice = choose(given, 3, None, "head")
    assert choice.values == boundaries
    assert choice.doubtful == doubtful
    assert word in choice.provenance
    if doubtful:
        assert len(choice.other) == 3
        assert choice.other != boundaries


def test_boundaries_given_by_hand_win():
    choice = choose(ids((1, 17, 32), **NESTED), 2, (5, 9), "head")
    assert (choice.values, choice.doubtful, choice.provenance) == ((5, 9), False, "explicit: --layer-boundaries")


@pytest.mark.parametrize(
    ("given", "n_aux", "error", "words"),
    [
        (ids(None), 5, ModelFileError, "fc reads 5 hidden states"),
        (ids((2, 3)), 3, ModelFileError, "found 2 layer ids"),
        (ids((2, 2, 3)), 3, ModelFileError, "different"),
        (ids((2, 18, 37)), 3, IncompatibleDraftError, "boundary 37"),
        (ids(None, n_layer_tgt=4), 3, ModelFileError, "different"),
    ],
)
def test_impossible_boundaries(given, n_aux, error, words):
    with pytest.raises(error, match=words):
        choose(given, n_aux, None, "head")


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
        ("model.fc.weight", "fc.weight"),
        ("aux_norm_mid.weight", "fc_norm.1.weight"),
        ("verifier_norm.weight", None),
        ("layers.0.self_attn.rotary_emb.inv_freq", None),
    ],
)
def test_names(name, canonical):
    assert canonical_name(name) == canonical


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("rules") / "target.gguf", n_layer=8, rope_theta=500000.0)


@pytest.fixture
def make(tmp_path, target):
    """Return `make(config, weights, **variant)`, which converts a plain head; it returns the result and its fields."""

    def build(config=lambda h: top_config(h, "Eagle3LlamaForCausalLM"), weights=None, options=None, **variant):
        head = write_head(tmp_path / "unused.gguf", target, **({"boundaries": (2, 4, 5)} | variant))
        write_family(tmp_path / "head", Family(config), head, weights)
        result = convert(tmp_path / "head", target.path, tmp_path / "out.gguf", **(options or {}))
        return result, gguf.GGUFReader(result.path).fields

    return build


def plain(**changes):
    return lambda h: top_config(h, "Eagle3LlamaForCausalLM", **changes)


def test_missing_theta_is_10000_and_not_the_targets(make):
    result, _ = make(plain(rope_theta=None))
    assert _core.read_head(str(result.path)).rope_freq_base == 10000.0
    assert any("rope_theta is missing" in note for note in result.spec.notes)
    result, _ = make(plain(rope_theta=None), options={"rope_theta": 5e5})
    assert _core.read_head(str(result.path)).rope_freq_base == 500000.0


def test_max_position_embeddings_does_not_clamp(make, model_address, target):
    result, _ = make(plain(max_position_embeddings=16))
    drafter = _core.Eagle3Drafter(str(result.path), model_address(target.path), 64, n_gpu_layers=0)
    drafter.process_rows(np.ones((40, 3 * 64), dtype=np.float32), [1] * 40, 0)
    assert len(draft_chain(drafter, 1, 3)) == 3


def test_class_defaults_of_a_diff_config(make):
    # eps 1e-6 is LlamaConfig's default, most configs write 1e-5
    result, _ = make(lambda h: speculators_config(h, {"rms_norm_eps": None}))
    assert _core.read_head(str(result.path)).rms_eps == pytest.approx(1e-6)
    assert _core.read_head(str(result.path)).n_embd_head == 16


def test_outer_table_wins(make):
    result, _ = make(lambda h: speculators_config(h, {"rms_norm_eps": 1e-3}, rms_norm_eps=1e-4))
    assert result.spec.rms_eps == pytest.approx(1e-4)


def test_yarn_added_at_export(make):
    scaling = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048, "attention_factor": 1.0}
    result, fields = make(plain(rope_scaling=scaling))
    assert result.spec.rope.kind == "yarn"
    assert fields["eagle3.rope.scaling.type"].contents() == "yarn"
    assert fields["eagle3.rope.scaling.factor"].contents() == 32.0
    assert fields["eagle3.rope.scaling.original_context_length"].contents() == 2048
    # ggml itself multiplies by 1 + 0.1 ln(32): an attention factor of 1 must undo that
    assert fields["eagle3.rope.scaling.attn_factor"].contents() == pytest.approx(1 / (1 + 0.1 * np.log(32)))


@pytest.mark.parametrize("scaling", [{"rope_type": "longrope", "factor": 2.0}, {"rope_type": "yarn"}])
def test_unknown_or_incomplete_scaling(make, scaling):
    with pytest.raises(ModelFileError, match=r"rope_type 'longrope'|'factor'"):
        make(plain(rope_scaling=scaling))


def test_norm_output_of_specforge_is_doubtful(make):
    def config(h):
        return top_config(h, "LlamaForCausalLMEagle3", norm_output=True)

    result, fields = make(config, norm_output=True)
    assert result.spec.norm_output.doubtful
    assert "SpecForge" in fields["eagle3.provenance.norm_output"].contents()
    result, _ = make(config, options={"norm_output": False})
    assert not result.spec.norm_output.doubtful
    assert not _core.read_head(str(result.path)).norm_output


def test_missing_norm_before_residual(make):
    def without(h):
        return speculators_config(h, norm_before_residual=None)

    # true in vLLM, false in speculators' schema
    result, _ = make(without)
    assert (result.spec.norm_before_residual.value, result.spec.norm_before_residual.doubtful) == (True, True)
    result, _ = make(without, options={"norm_before_residual": False})
    assert _core.read_head(str(result.path)).norm_before_residual is False
    # false in all others
    result, _ = make(plain())
    assert (result.spec.norm_before_residual.value, result.spec.norm_before_residual.doubtful) == (False, False)
    # ModelOpt's converter to speculators writes true for every head, and no ids
    result, _ = make(lambda h: speculators_config(h, norm_before_residual=True, **{IDS_KEY: None}))
    assert result.spec.norm_before_residual.doubtful


def test_norm_before_fc_by_its_tensor(make):
    result, _ = make(plain(), norm_before_fc=True)  # no flag anywhere
    assert _core.read_head(str(result.path)).norm_before_fc


def test_qwen_window_is_off_unless_used(make):
    result, _ = make(plain(model_type="qwen3", sliding_window=8), qk_norm=True)
    assert result.spec.sliding_window == 0


def test_provenance_is_in_the_file_and_told_at_load(make, target, caplog):
    caplog.set_level("INFO", "llama_cpp_eagle3")
    result, fields = make(plain())
    llm = Eagle3Llama(target.path, draft_model_path=str(result.path), n_ctx=64, verbose=True)
    llm.close()
    assert "reads [2, 4, 5] of 8 layers" in caplog.text
    assert "(default: no ids in the checkpoint" in caplog.text
    assert _core.read_head(str(result.path)).boundaries_why == fields["eagle3.provenance.boundaries"].contents()
    assert fields["eagle3.provenance.boundaries"].contents().startswith("default: ")
    assert fields["eagle3.provenance.family"].contents() == "vLLM/AngelSlim"
    text = str(inspect(result.path))
    assert "default: no ids in the checkpoint" in text
    assert "llama.cpp" in text


class TestVocabulary:
    """d2t holds offsets to target ids."""

    def test_offsets_become_ids(self, make):
        result, _ = make(plain())
        tensors = {t.name: t.data for t in gguf.GGUFReader(result.path).tensors}
        assert np.array_equal(tensors["d2t"], result.spec.d2t)
        assert np.all(np.diff(tensors["d2t"]) > 0)
        assert tensors["d2t"].dtype == np.int64

    def test_absolute_ids_are_seen(self, make, target):
        ids = np.arange(target.n_vocab - 96, target.n_vocab)
        result, _ = make(plain(), {"d2t": ids})
        assert np.array_equal(result.spec.d2t, ids)
        assert any("not offsets" in note for note in result.spec.notes)

    def test_identity_is_dropped(self, make, target):
        result, _ = make(plain(), {"d2t": np.zeros(target.n_vocab, np.int64)}, n_vocab_dft=target.n_vocab)
        assert not _core.read_head(str(result.path)).has_d2t

    def test_taken_from_t2d_if_missing(self, tmp_path, target):
        head = write_head(tmp_path / "unused.gguf", target, boundaries=(2, 4, 5))
        ids = head.d2t
        del head.weights["d2t"]
        mask = np.isin(np.arange(target.n_vocab), ids)
        write_family(tmp_path / "head", FAMILIES["specforge_full_vocabulary"], head)
        config = layer_config(head, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=96)
        (tmp_path / "head" / "config.json").write_text(json.dumps(config))
        with pytest.raises(IncompatibleDraftError, match="'d2t', is missing"):
            convert(tmp_path / "head", target.path, tmp_path / "out.gguf")
        from checkpoints import write_safetensors

        write_safetensors(tmp_path / "head" / "model.safetensors", head.weights | {"t2d": mask}, "bf16")
        assert np.array_equal(convert(tmp_path / "head", target.path, tmp_path / "out.gguf").spec.d2t, ids)

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            (lambda d: d[-1:] + 10**6, IncompatibleDraftError, "the target's vocabulary has 320 tokens"),
            (lambda d: d[-2:-1] - 1, ModelFileError, "both map to the target's token"),
        ],
        ids=["range", "duplicate"],
    )
    def test_bad_map(self, make, change, error, words):
        d2t = np.zeros(96, np.int64)
        d2t[-1:] = change(d2t)
        with pytest.raises(error, match=words):
            make(plain(), {"d2t": d2t})

    def test_wrong_length(self, make):
        with pytest.raises(ModelFileError, match="expected 96 entries, one for each row of lm_head, found 90"):
            make(plain(), {"d2t": np.zeros(90, np.int64)})
