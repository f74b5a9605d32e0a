"""--probe measures open settings of a checkpoint on the target itself, and the right ones win."""

import numpy as np
import pytest

from checkpoints import Family, top_config, write_family
from llama_cpp_eagle3 import Eagle3Error, _core
from llama_cpp_eagle3.cli import main
from llama_cpp_eagle3_heads.convert import convert
from llama_cpp_eagle3_heads.convert.boundaries import IDS_KEY
from tiny import write_head, write_perfect_pair, write_target

PROMPTS = ["def f(x):", "the quick brown fox"]


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Return a perfect pair that notices a wrong boundary and a wrong norm_output.

    Channel 1 of the residual stream stays empty up to the last layer, which fills it with noise. The head spreads its
    values. Its last norm has odd weights, which lm_head undoes, but not a recurrent state.
    """
    folder = tmp_path_factory.mktemp("probe")
    target, head = write_perfect_pair(folder / "target.gguf", folder / "head.gguf")
    rng = np.random.default_rng(5)
    weights = dict(target.weights)
    for name in weights:
        if "o_proj" in name or "down_proj" in name:
            weights[name] = weights[name].copy()
            weights[name][1] = rng.normal(0.0, 5.0, weights[name].shape[1]) if ".3.mlp" in name else 0.0
    target = write_target(folder / "target.gguf", seed=3, weights=weights)

    spread = head.weights["fc.weight"].copy()
    spread[2:, 1::64] += rng.normal(0.0, 20.0, (62, 1))
    odd = rng.uniform(0.2, 5.0, 64) * rng.choice([-1.0, 1.0], 64)
    changes = {
        "fc.weight": spread,
        "norm.weight": odd,
        "lm_head.weight": head.weights["lm_head.weight"] / odd,
    }
    return target, write_head(folder / "head.gguf", target, weights=head.weights | changes, **variant(head))


def variant(head):
    names = ("norm_before_residual", "n_vocab_dft", "own_output", "boundaries", "n_ff")
    return {name: getattr(head.variant, name) for name in names}


def specforge(head):
    # both are wrong: these ids are boundaries, and the normed state is not fed back
    return top_config(
        head, "LlamaForCausalLMEagle3", norm_output=True, norm_before_residual=True, eagle_config={IDS_KEY: [1, 2, 3]}
    )


def test_the_truth_wins(tmp_path, pair):
    target, head = pair
    write_family(tmp_path / "head", Family(specforge, dtype="f32"), head)
    plain = convert(tmp_path / "head", target.path, tmp_path / "plain.gguf", outtype="f32")
    assert plain.spec.boundaries.values == (2, 3, 4)
    assert plain.spec.norm_output.value

    result = convert(tmp_path / "head", target.path, tmp_path / "out.gguf", outtype="f32", probe_prompts=PROMPTS)
    assert len(result.probe) == 4
    best = result.probe[0]
    assert (best.candidate.boundaries, best.candidate.norm_output) == ((1, 2, 3), False)
    assert best.acceptance == (1.0, 1.0, 1.0)
    assert result.probe[1].n_accepted < 2.5
    assert not result.spec.doubts
    made = _core.read_head(str(result.path))
    assert (made.boundaries, made.norm_output, made.arch) == ([1, 2, 3], False, "eagle3")
    assert "measured: 3.00 tokens" in result.spec.boundaries.provenance


def test_command_shows_the_table(tmp_path, pair, capsys):
    target, head = pair
    write_family(tmp_path / "head", Family(specforge, dtype="f32"), head)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    argv = ["convert", str(tmp_path / "head"), "--target", target.path, "-o", str(tmp_path / "out.gguf")]
    assert main([*argv, "--probe", str(tmp_path / "prompts.txt"), "--norm-output", "off"]) == 0
    out = capsys.readouterr()
    assert "1, 2, 3                  off          on                    100.0%  100.0%  100.0%" in out.out
    assert "warning" not in out.err
    assert main(argv) == 0
    assert "norm_output on or off. Settle it with --probe" in capsys.readouterr().err


def test_probe_needs_prompts_and_a_gguf(tmp_path, pair):
    target, head = pair
    write_family(tmp_path / "head", Family(specforge, dtype="f32"), head)
    with pytest.raises(Eagle3Error, match="needs prompts"):
        convert(tmp_path / "head", target.path, tmp_path / "out.gguf", probe_prompts=["", " "])
    assert not (tmp_path / "out.gguf").exists()


def test_probe_of_a_head_without_fc(tmp_path, pair):
    target, _ = pair
    head = write_head(tmp_path / "unused.gguf", target, use_aux_hidden_state=False)

    def config(h):
        return top_config(h, "LlamaForCausalLMEagle3", norm_output=True)

    write_family(tmp_path / "head", Family(config), head)
    result = convert(tmp_path / "head", target.path, tmp_path / "out.gguf", probe_prompts=PROMPTS)
    assert len(result.probe) == 2
