"""Usual work on an accelerator: layers on it, servers beside it, clients, images, several drafters, states."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from joint import write_both
from llama_cpp_eagle3 import Eagle3Llama, _core
from loading import cheap_rows, load, prompts, take
from placement import ON_AN_ACCELERATOR, ON_CPU
from rpc_server import RpcServer
from serving import Running
from tiny import write_head
from vlm_pairs import load_vlm

pytestmark = ON_AN_ACCELERATOR

N_TOKENS = 24
QUESTION = "Is it a cat?"
MARGIN = 0.05
"""Least difference of the two best log-probabilities of each token of an answer to an image.

Encoders that round otherwise move those of random models by up to 0.006, and QUESTION has no smaller margin than 0.08.
"""
CHAIN: dict[str, Any] = {"draft": "chain", "draft_n_max": 4}
TREE: dict[str, Any] = {"draft": "tree", "draft_tree_depth": 3, "draft_tree_topk": 2, "draft_tree_tokens": 6}


@pytest.fixture(scope="module")
def pair(tiny_target: Any, tiny_head: Any) -> tuple[Any, Any]:
    """Return a pair whose text depends on all tokens before, with a head that is nearly always wrong."""
    return tiny_target, tiny_head


def greedy(llm: Eagle3Llama) -> list[list[int]]:
    return [take(llm, prompt, N_TOKENS) for prompt in prompts(2, seed=3)]


@pytest.fixture(scope="module")
def expected(pair: tuple[Any, Any]) -> list[list[int]]:
    """Return the texts on the CPU."""
    with load(pair[0], **ON_CPU) as llm:
        return greedy(llm)


@pytest.mark.parametrize("draft", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("n_gpu_layers", [1, 2, -1, 12345])
def test_some_of_the_layers(
    pair: tuple[Any, Any], expected: list[list[int]], n_gpu_layers: int, draft: dict[str, Any]
) -> None:
    """More layers than there are means all of them."""
    with load(*pair, n_gpu_layers=n_gpu_layers, **draft) as llm:
        assert greedy(llm) == expected
        assert llm.stats.drafted > 0


@pytest.mark.parametrize("draft_on_server", [False, True], ids=["draft here", "draft on the server"])
@pytest.mark.skipif(not _core.rpc_supported(), reason="llama.cpp is built without ggml-rpc")
def test_an_rpc_server_beside_it(
    pair: tuple[Any, Any], expected: list[list[int]], rpc_server: RpcServer, draft_on_server: bool
) -> None:
    """Each of the two devices has some of the target's layers."""
    (accelerator, *_) = _core.local_accelerators()
    device = rpc_server.endpoint if draft_on_server else accelerator.name
    options = {"rpc_servers": rpc_server.endpoint, "tensor_split": [1.0, 1.0], "draft_device": device}
    with load(*pair, **options, **CHAIN) as llm:
        assert llm.drafters[0].device.startswith("RPC") == draft_on_server
        assert greedy(llm) == expected
        assert llm.stats.drafted > 0


def test_two_clients_of_a_server(pair: tuple[Any, Any]) -> None:
    """Each client has the text that it has alone and without drafts."""
    body = {"max_tokens": N_TOKENS, "temperature": 0.0, "cache_prompt": False}
    asked = [{**body, "prompt": prompt} for prompt in prompts(2, seed=3)]
    with Running(*pair, n_gpu_layers=-1, **CHAIN) as running:
        alone = [running.ask("/completion", {**one, "speculative": False})["content"] for one in asked]
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda one: running.ask("/completion", one), asked))
        assert [answer["content"] for answer in answers] == alone
        assert all(answer["timings"]["draft_n"] > 0 for answer in answers)


@pytest.mark.parametrize("name", ["qwen25vl", "gemma3"])
def test_images(tmp_path: Path, name: str) -> None:
    """The encoder runs on the accelerator too."""
    vlm = load_vlm(name)
    head = write_head(tmp_path / "head.gguf", vlm.target)
    asked = [
        {
            "role": "user",
            "content": [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": vlm.file}],
        }
    ]
    texts = []
    for options in (ON_CPU, {"n_gpu_layers": -1}):
        with load(vlm.path, head.path, mmproj_path=vlm.mmproj, n_ctx=1024, **options, **CHAIN) as llm:
            answer = llm.create_chat_completion(asked, temperature=0.0, max_tokens=12, logprobs=True, top_logprobs=2)
            (choice,) = answer["choices"]
            texts.append(choice["message"]["content"])
            best = [[one["logprob"] for one in token["top_logprobs"]] for token in choice["logprobs"]["content"]]
            assert min(first - second for first, second in best) > MARGIN
            assert llm.last_stats.drafts > 0
    assert texts[0] == texts[1]


def test_several_drafters(tmp_path: Path, no_clock: None) -> None:
    """A head, the block in the target's file, and n-grams draft together; all are asked, whatever their cost."""
    files = write_both(tmp_path, "glm4moe-mtp")
    with load(files[0], **ON_CPU) as llm:
        expected = greedy(llm)
    with load(*files, n_gpu_layers=-1, draft="auto", draft_sources=("eagle3", "mtp", "ngram")) as llm:
        cheap_rows(llm)
        assert greedy(llm) == expected
        assert min(llm.policy.stats()["asked"]) > 0
