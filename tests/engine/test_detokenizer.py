"""Text as it grows: text that was sent is never taken back, and a stop string ends it wherever its bytes lie."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llama_cpp_eagle3.engine.detokenizer import Detokenizer

# bytes of characters cut in two, leads without a continuation, and parts of stop strings
pieces = st.lists(
    st.sampled_from(
        [b"r", b"at", b"a", b"b", b"ab", b"\xc4", b"\x9f", b"\xf3", b"\xf0\x9f", b"\x98\x80", "é".encode()]
    ),
    max_size=12,
)
stops = st.lists(st.sampled_from(["a", "ab", "ba", "ré", "bab", "😀", "tr"]), max_size=3, unique=True)


def grow(text: Detokenizer, pieces: list[bytes], can_complete: bool) -> tuple[str, bool]:
    """Add pieces as the engine does, until a stop string comes; return (the text, whether one came)."""
    out = ""
    for piece in pieces:
        found = text.add(piece, can_complete=can_complete) and text.find_stop()
        out += text.release(at_end=found)
        if found:
            return out, True
    return out + text.release(at_end=True), False


def test_stop_string_while_a_character_is_incomplete() -> None:
    text = Detokenizer(["a"])
    assert grow(text, [b"\xf3", b"r", b"at", b"s"], can_complete=True) == ("r", True)
    assert str(text) == "r"


def test_stop_string_far_behind() -> None:
    text = Detokenizer(["a"])
    assert grow(text, [b"\xf3", b"ra", b"a long piece", b"x"], can_complete=True) == ("r", True)


@settings(max_examples=400, deadline=None)
@given(pieces=pieces, stop=stops, can_complete=st.booleans())
def test_what_is_handed_out_stays(pieces: list[bytes], stop: list[str], can_complete: bool) -> None:
    text = Detokenizer(stop)
    out, stopped = grow(text, pieces, can_complete)
    whole, left = b"".join(pieces), bytes(text._bytes)
    assert out == str(text) == left.decode(errors="ignore")
    if stopped:
        assert any(whole.startswith(left + s.encode()) for s in stop)
        assert not any(s.encode() in left for s in stop)
    elif not can_complete:
        assert not any(s.encode() in whole for s in stop)
