"""/v1/embeddings gives plain llama_cpp's embeddings."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import llama_cpp
import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from loading import load_plain
from serving import Running

TEXTS = ["the self", "return of the other"]


@pytest.fixture(scope="module")
def running(pair: Any) -> Iterator[Running]:
    with Running(*pair, options={"embeddings": True, "pooling": 1}) as running:
        yield running


def expected(pair: Any, pooling: int) -> list[Any]:
    with closing(load_plain(pair[0], embedding=True, pooling_type=pooling, type_k=None, type_v=None)) as plain:
        return [plain.embed(text, normalize=pooling != llama_cpp.LLAMA_POOLING_TYPE_NONE) for text in TEXTS]


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_openai(running: Running, pair: Any) -> None:
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="tiny", input=TEXTS)  # the client asks for base64
    vectors = [item.embedding for item in answer.data]
    np.testing.assert_allclose(vectors, expected(pair, llama_cpp.LLAMA_POOLING_TYPE_MEAN), atol=1e-5)
    n_tokens = [len(running.ask("/tokenize", {"content": t, "add_special": True})["tokens"]) for t in TEXTS]
    assert answer.usage.prompt_tokens == sum(n_tokens)
    body = {"input": running.ask("/tokenize", {"content": TEXTS[0], "add_special": True})["tokens"]}
    [of_tokens] = running.ask("/v1/embeddings", body)["data"]
    assert of_tokens["embedding"] == pytest.approx(vectors[0], abs=1e-6)
    [of_parts] = running.ask(
        "/v1/embeddings", {"input": {"content": [text_part(TEXTS[0][:3]), text_part(TEXTS[0][3:])]}}
    )["data"]
    assert of_parts["embedding"] == pytest.approx(vectors[0], abs=1e-6)
    nulls = {"encoding_format": None, "embd_normalize": None, "dimensions": None, "user": None}
    whole = running.ask("/v1/embeddings", {"input": TEXTS[0], **nulls})
    CreateEmbeddingResponse.model_validate(whole)
    assert whole["data"][0]["embedding"] == pytest.approx(vectors[0], abs=1e-6)
    [packed] = running.ask("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})["data"]
    assert np.frombuffer(base64.b64decode(packed["embedding"]), "<f4") == pytest.approx(vectors[0], abs=1e-6)


def test_beside_a_generation(running: Running) -> None:
    """The two contexts do not disturb each other."""
    ask = {"prompt": TEXTS[1], "n_predict": 40, "temperature": 0.0, "cache_prompt": False}
    alone = running.ask("/completion", ask)["content"]
    before = running.ask("/v1/embeddings", {"input": TEXTS})["data"]
    with running.client.stream("POST", "/completion", json={**ask, "stream": True}) as response:
        lines = response.iter_lines()
        first = next(lines)
        assert running.ask("/v1/embeddings", {"input": TEXTS})["data"] == before
        assert first.startswith("data: ")
        assert sum(line.startswith("data: ") for line in lines) == 40
    assert running.ask("/completion", ask)["content"] == alone


def test_llama_servers_own(running: Running) -> None:
    [raw] = running.ask("/embedding", {"content": TEXTS[0], "embd_normalize": -1})
    [unit] = running.ask("/embedding", {"content": TEXTS[0]})
    [whole] = running.ask("/embedding", {"content": TEXTS[0], "embd_normalize": 0})
    x = np.array(raw["embedding"][0])
    assert np.array(unit["embedding"][0]) == pytest.approx(x / np.linalg.norm(x), abs=1e-6)
    assert np.abs(whole["embedding"][0]).max() == pytest.approx(32760.0)


def test_without_pooling(pair: Any) -> None:
    with Running(pair[0], options={"embeddings": True, "pooling": 0}) as running:
        found = running.ask("/embedding", {"content": TEXTS})
        for item, rows in zip(found, expected(pair, llama_cpp.LLAMA_POOLING_TYPE_NONE), strict=True):
            np.testing.assert_allclose(item["embedding"], rows, atol=1e-4)
        response = running.post("/v1/embeddings", {"input": TEXTS})
        assert response.status_code == 400
        assert "Pooling type 'none'" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"input": []},
        {"input": 5},
        {"input": [[]]},
        {"input": "x", "encoding_format": "hex"},
        {"input": "x", "embd_normalize": "y"},
        {"input": [3] * 600},
        {"input": {"content": "text"}},
        {"input": [{"content": []}]},
        {"input": {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}},
        {"input": {"content": [{"type": "text", "text": 5}]}},
    ],
)
def test_bad_bodies(running: Running, wrong: dict[str, Any]) -> None:
    response = running.post("/v1/embeddings", wrong)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"
