"""Where conversations part: the positions of a prompt at which another one may go on differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .templates import ChatParams


def message_boundaries(
    params: ChatParams, tokens: Sequence[int], tokenize: Callable[[str], list[int]]
) -> tuple[int, ...]:
    """Positions at which messages begin, in order; the last one is that of the answer, if the prompt begins it.

    Of the answer's beginning that counts as the answer which later turns may show otherwise: not the role's name.

    The first message that has a delimiter follows the system prompt and the tools, which have none in most templates.

    Args:
        params: the conversation.
        tokens: of its prompt; those of images are negative.
        tokenize: tokens of a text, special ones parsed, nothing put before or after it.
    """
    tokens = list(tokens)
    found: set[int] = set()
    for _, delimiter in params.message_delimiters:
        found.update(_occurrences(tokens, tokenize(delimiter)))
    answer = params.generation_prompt
    if answer:
        n_answer = len(tokenize(answer))
        for part in (answer[len(params.answer_begin) :], answer):
            at = _begin_of(tokens, tokenize(part) if part else [])
            if at is not None:
                found = {n for n in found if n < len(tokens) - n_answer} | {at}
                break
    return tuple(sorted(found))


def _begin_of(tokens: list[int], end: list[int]) -> int | None:
    """Where `end` begins at the end of the tokens: its first one may have been joined with what stands before it."""
    for part in (end, end[1:]):
        at = len(tokens) - len(part)
        if tokens[at:] == part and (part or not end):
            return at
    return None


def thought_ends(params: ChatParams, tokenize: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """What may end the answer's thought: after it, clients send an answer otherwise than it was written.

    Args:
        params: the conversation.
        tokenize: tokens of a text, special ones parsed, nothing put before or after it.
    """
    tags = dict.fromkeys(tag.strip() for tag in params.thinking_end_tags)
    return tuple(tuple(tokenize(tag)) for tag in tags if tag)


def _occurrences(tokens: list[int], part: list[int]) -> list[int]:
    found = []
    at = -1
    while part:
        try:
            at = tokens.index(part[0], at + 1)
        except ValueError:
            break
        if tokens[at : at + len(part)] == part:
            found.append(at)
    return found
