"""Greedy verification on the target's device gives the same tokens, and no logits are transferred."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

import placement
from llama_cpp_eagle3 import Eagle3Error, LogitsError
from loading import is_tie, load, load_plain, prompts, take
from lowlevel import LowLevel, parts_of
from random_arch import N_VOCAB, load_random_arch
from rpc_counter import RpcCounter
from rpc_server import RpcServer
from tiny import write_target
from tolerance import tolerance

pytestmark = pytest.mark.also_on_rpc("target-on-rpc")

N_OUTPUTS = 8


def context(folder: Path, arch: str, **params) -> LowLevel:
    return LowLevel(load_random_arch(folder, arch), [0, 1], n_outputs=N_OUTPUTS, **params)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt-oss", "qwen35", "mamba2"])
def test_chains(tmp_path: Path, arch: str) -> None:
    """Chains give the same text in steps with rejections, replays included."""
    rng = np.random.default_rng(0)
    with context(tmp_path, arch, n_rs_seq=N_OUTPUTS) as here, context(tmp_path, arch, n_rs_seq=N_OUTPUTS) as there:
        text = rng.integers(0, N_VOCAB, 20).tolist()
        there.target.set_device_argmax(N_OUTPUTS)
        for low in (here, there):
            low.target.decode(text, 0, False)
        assert there.target.argmax(19) == here.target.argmax(19)
        for _ in range(20):
            tokens = rng.integers(0, N_VOCAB, rng.integers(1, N_OUTPUTS + 1)).tolist()
            n_accepted = int(rng.integers(1, len(tokens) + 1))
            for low in (here, there):
                low.decode_draft(tokens, len(text))
                if len(tokens) > 1:
                    low.target.accept(0, list(range(n_accepted)))
            for row in range(len(tokens)):
                assert there.target.argmax(row) == here.target.argmax(row)
            np.testing.assert_allclose(there.tap.rows, here.tap.rows, atol=tolerance(1e-5))
            text += tokens[:n_accepted]


def test_trees_and_several_sequences(tmp_path: Path) -> None:
    ids = {"n_seq_max": 6, "n_seq": 3}
    with context(tmp_path, "llama", **ids) as here, context(tmp_path, "llama", **ids) as there:
        there.target.set_device_argmax(N_OUTPUTS)
        tokens, parents = [5, 6, 7, 8, 9, 10], [-1, 0, 0, 1, 2, 2]
        for low in (here, there):
            low.target.decode([1, 2, 3], 0, False)
            low.decode_tree(tokens, parents, 3)
        for row in range(len(tokens)):
            assert there.target.argmax(row) == here.target.argmax(row)
        parts = [(2, 0, [3, 4, 5]), (0, 5, [6]), (1, 0, [7, 8])]
        for low in (here, there):
            low.target.accept(0, [0, 1])
            low.target.decode_parts(parts_of(*parts))
        for row in range(6):
            assert there.target.argmax(row) == here.target.argmax(row)


def test_logits_stay_there_until_they_are_asked_for(tmp_path: Path) -> None:
    with context(tmp_path, "llama") as low:
        low.target.decode([1, 2, 3], 0)
        want = low.target.logits_all(3)
        for _ in range(3):
            low.target.set_device_argmax(N_OUTPUTS)
            np.testing.assert_array_equal(low.target.logits(2), want[2])  # the logits of the last decode are still here
            low.target.decode([1, 2, 3], 0)
            assert [low.target.argmax(i) for i in range(3)] == want.argmax(1).tolist()
            with pytest.raises(Eagle3Error, match="row 2 are on the target's device"):
                low.target.logits(2)
            with pytest.raises(ValueError, match="row 3 is out of range"):
                low.target.argmax(3)
            with pytest.raises(Eagle3Error, match="more rows with logits than the 8"):
                low.target.decode(list(range(9)), 0)
            low.target.decode(list(range(9)), 0, False)
            with pytest.raises(ValueError, match="row 3 has no logits"):
                low.target.argmax(3)
            low.target.set_device_argmax(0)
            low.target.decode([1, 2, 3], 0)
            np.testing.assert_allclose(low.target.logits_all(3), want, atol=tolerance(1e-6))


def test_logits_that_are_nan(tmp_path: Path) -> None:
    """NaN gives the same error as on the host."""
    name = "model.embed_tokens.weight"
    embd = np.array(write_target(tmp_path / "t.gguf").weights[name])
    embd[7] = np.nan
    path = write_target(tmp_path / "t.gguf", weights={name: embd}).path
    best = []
    for n_outputs in (0, N_OUTPUTS):
        with LowLevel(path, n_outputs=N_OUTPUTS) as low:
            low.target.set_device_argmax(n_outputs)
            low.target.decode([5, 6], 0)
            best.append([low.target.argmax(0), low.target.argmax(1)])
            low.target.decode([7], 2)
            with pytest.raises(LogitsError, match="the logits are no numbers"):
                low.target.argmax(0)
    assert best[0] == best[1]


def test_what_travels(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "here":
        pytest.skip("nothing travels")
    with RpcServer() as server:  # a server of its own, since a server has one client at a time
        counter = RpcCounter(server.endpoint)
        counted = placement.Placement(counter.endpoint, draft=False)
        monkeypatch.setattr(placement, "current", counted)
        path = write_target(tmp_path / "t.gguf", n_vocab=3200).path
        with LowLevel(path, [1, 2], n_outputs=N_OUTPUTS) as low:
            n_bytes = {}
            for n_outputs in (0, N_OUTPUTS):
                low.target.set_device_argmax(n_outputs)
                low.target.decode([1, 2, 3, 4], 0)
                counter.n.clear()
                low.target.decode([1, 2, 3, 4], 0)
                n_bytes[n_outputs] = counter.n["bytes"]
            assert n_bytes[0] - n_bytes[N_OUTPUTS] > 4 * 3200 * 4 - 200
        counted.close()


def test_generations_switch_it_on_and_off(perfect_pair) -> None:
    """Greedy text, samplers, states, evaluation and logits in turn are the same as on a target whose rows are read."""
    target, head = perfect_pair
    plain = load_plain(target)
    with closing(plain), closing(load(target, head, draft_n_max=4)) as llm:
        remote = llm.target.logits_are_remote
        assert remote == (placement.current is not None)
        prompt = prompts(1)[0]
        expected = take(plain, prompt, 40)
        for _ in range(2):
            assert not is_tie(plain, prompt, expected, take(llm, prompt, 40))
            assert llm.engine.stepper.verifier.argmax_on_device == remote
            # logits are read again: by a sampler, a processor, stopping criteria, sample() and eval()
            plain.set_seed(1)
            llm.set_seed(1)
            assert take(llm, prompt, 20, temp=0.8) == take(plain, prompt, 20, temp=0.8)
            assert not llm.engine.stepper.verifier.argmax_on_device
            take(llm, prompt, 10)
            assert llm.sample(temp=0.0) == expected[9]
            stop = llama_cpp.StoppingCriteriaList([lambda _, logits: int(np.argmax(logits)) == expected[5]])
            assert len(take(llm, prompt, 40, stopping_criteria=stop)) <= expected.index(expected[5])
            state = llm.save_state()
            take(llm, [3, 2, 1], 5)
            llm.load_state(state)
            assert take(llm, prompt, 40) == expected
            llm.reset()
            llm.eval(prompt)
            assert llm.target.argmax(len(prompt) - 1) == expected[0] == int(llm.target.logits(len(prompt) - 1).argmax())
            assert llm.generate_batch([prompt], temperature=0.0, max_tokens=20)[0].tokens[:20] == expected[:20]
