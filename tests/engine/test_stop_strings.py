"""The automaton of the stop strings matches a search for each of them everywhere, and its cost is bounded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from llama_cpp_eagle3.engine.detokenizer import Detokenizer, StopStrings


def search(pieces: Sequence[bytes], stop: Sequence[str]) -> tuple[list[str], str, str]:
    """Return the text handed out after each piece, all of it, and the stop string that ended it; all of ASCII."""
    text, n_out, lines = "", 0, []
    for piece in pieces:
        text += piece.decode()
        found = [(i, word) for word in stop if (i := text.find(word, n_out)) >= 0]
        if found:
            i, word = min(found)
            lines.append(text[n_out:i])
            return lines, text[:i], word
        held = max((n for word in stop for n in range(1, len(word)) if text.endswith(word[:n])), default=0)
        lines.append(text[n_out : len(text) - held])
        n_out = len(text) - held
    return lines, text, ""


@pytest.mark.parametrize("seed", range(300))
def test_as_a_search_for_each(seed: int) -> None:
    rng = random.Random(seed)

    def some(n_max: int) -> str:
        return "".join(rng.choices("abc", k=rng.randint(1, n_max)))

    stop = [some(6) for _ in range(rng.randint(1, 8))]
    pieces = [some(4).encode() for _ in range(rng.randint(1, 12))]
    text, lines = Detokenizer(stop), []
    for piece in pieces:
        text.add(piece, can_complete=False)
        ended = text.find_stop()
        lines.append(text.release(at_end=ended))
        if ended:
            break
    assert (lines, str(text), text.stopping_word) == search(pieces, stop)


def test_the_cost_of_a_token_does_not_grow_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    n_looks = 0

    class Counted(dict[int, int]):
        def get(self, *args: object) -> object:  # type: ignore[override]
            nonlocal n_looks
            n_looks += 1
            return super().get(*args)  # type: ignore[call-overload]

    stop = [f"{'ab' * 20}{i}" for i in range(5000)]
    strings = StopStrings([word.encode() for word in stop])
    strings._goto = Counted(strings._goto)
    text = Detokenizer(stop)
    monkeypatch.setattr(text, "_strings", strings)
    for _ in range(500):
        text.add(b"abab", can_complete=False)
        assert not text.find_stop()
        text.release()
    assert n_looks <= 2 * 500 * 4
