"""--context-shift: the text is the target's after the remaining tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dflash
import mtp
from loading import gap_at, load_plain, take
from serving import Running
from small import write_small_pair
from tiny import write_head, write_target


@pytest.fixture(scope="module", params=["eagle3", "mtp", "simple", "dflash"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str | None]:
    """Return a target's file, and that of its drafter if that is not its own block."""
    folder: Path = tmp_path_factory.mktemp("shift")
    if request.param == "mtp":
        return str(mtp.write_able(folder, "mimo2-mtp")), None
    if request.param == "simple":
        target, small = write_small_pair(folder)
        return target, small
    if request.param == "dflash":
        able = dflash.write_able(folder)
        return str(able.target), str(able.drafter)
    tiny = write_target(folder / "target.gguf")
    return tiny.path, write_head(folder / "head.gguf", tiny).path


@pytest.fixture(scope="module")
def running(pair: Any) -> Iterator[Running]:
    with Running(*pair, n_ctx=512, draft="chain", draft_n_max=3, options={"context_shift": True}) as running:
        yield running


@pytest.mark.parametrize("options", [{}, {"n_keep": 10, "n_discard": 7}, {"n_keep": -1}, {"n_keep": 9999}])
def test_the_text_goes_on(running: Running, pair: Any, options: dict[str, int]) -> None:
    n_ctx, n_predict = running.server.engine.n_ctx, 100
    prompt = [i % 60 + 1 for i in range(n_ctx - 20)]
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0.0, "return_tokens": True, "ignore_eos": True}
    body["cache_prompt"] = False
    answer = running.ask("/completion", {**body, **options})
    tokens = answer["tokens"]
    assert len(tokens) == answer["timings"]["predicted_n"] == n_predict
    assert answer["timings"]["prompt_n"] == len(prompt)
    assert answer["truncated"] is True
    n_keep = options.get("n_keep", 0)
    n_keep = min(n_ctx - 4, len(prompt) if n_keep < 0 else n_keep + 1)
    left, n_shifts = list(prompt), 0
    bias = {running.server.llm.token_eos(): -1e9}
    with closing(load_plain(pair[0], n_ctx=2 * n_ctx)) as plain:
        done = 0
        while done < n_predict:
            n = min(n_ctx + 1 - len(left), n_predict - done)
            expected = take(plain, left, n, logits_processor=_without(bias))
            if expected != tokens[done : done + n]:
                i = next(i for i in range(n) if expected[i] != tokens[done + i])
                assert gap_at(plain, [*left, *expected[:i]]) < 1e-3
                return  # a tie: the texts have parted
            left += expected
            done += n
            if done < n_predict:
                n_shifts += 1
                n_cut = min(options.get("n_discard", 0) or (n_ctx - n_keep) // 2, n_ctx - n_keep - 1)
                del left[n_keep : n_keep + n_cut]
    assert n_shifts >= 1


def _without(bias: dict[int, float]) -> Any:
    def process(ids: Any, scores: Any) -> Any:
        for token, x in bias.items():
            scores[token] += x
        return scores

    return [process]


def test_it_is_kept_and_goes_on(running: Running) -> None:
    """Streams, drafts and the next text in the same slot continue."""
    n_ctx = running.server.engine.n_ctx
    body = {"prompt": [5] * (n_ctx - 8), "n_predict": 60, "temperature": 0.0, "ignore_eos": True, "id_slot": 0}
    *events, last = running.stream("/completion", body)
    assert len(events) == 60
    assert last["timings"]["draft_n"] > 0
    assert running.ask("/completion", body)["content"] == "".join(e["content"] for e in events) + last["content"]


def test_without_the_flag_the_text_ends(pair: Any) -> None:
    with Running(*pair) as running:
        n_ctx = running.server.engine.n_ctx
        answer = running.ask("/completion", {"prompt": [5] * (n_ctx - 8), "n_predict": 60, "ignore_eos": True})
        assert (answer["tokens_predicted"], answer["truncated"]) == (8, True)
