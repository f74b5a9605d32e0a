"""Where conversations part: the positions of a prompt at which another one may go on differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .templates import ChatParams


def message_boundaries(
    params: ChatParams, tokens: Sequence[int], tokenize: Callable[[str], list[int]]
) -> tuple[int, ...]:
    """Positions at which messages begin, in order; the last one is that of the answer, if the prompt begins it.

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
    prompt_end = tokenize(params.generation_prompt) if params.generation_prompt else []
    # the first token may have been joined with what stands before it
    for skipped in (0, 1):
        end = prompt_end[skipped:]
        if end and tokens[-len(end) :] == end:
            found.add(len(tokens) - len(end))
            break
    return tuple(sorted(found))


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
