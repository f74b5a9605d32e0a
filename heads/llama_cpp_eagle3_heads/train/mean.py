"""The mean of two heads, of which one went on from the other: it keeps more of both than either has."""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
# (torch is not installed where mypy runs, so that everything of it is Any)

from __future__ import annotations

from copy import deepcopy

import torch

from llama_cpp_eagle3.errors import IncompatibleDraftError

from .eagle import Head


@torch.no_grad()
def mean_head(before: Head, after: Head, share: float) -> Head:
    """Return a head of which each weight is ``share`` of one head's and the rest of the other's.

    A head that learned from other texts forgets a part of what it knew; between the weights of both lies one that does
    both (WiSE-FT, arXiv 2109.01903).

    Args:
        before: The head that the other one went on from.
        after: It gives the tokens to draft. Rows of tokens that ``before`` does not draft are its own.
        share: Of the weights of ``before``, from 0 to 1.

    Raises:
        IncompatibleDraftError: the heads have other weights.
    """
    mean = deepcopy(after)
    old, new = {name: values.to(after.device) for name, values in before.state_dict().items()}, mean.state_dict()
    row_of = torch.full((after.cfg.n_vocab,), -1, device=after.device)
    row_of[old["d2t"]] = torch.arange(len(old["d2t"]), device=after.device)
    rows = row_of[after.d2t]
    shapes = [
        {name: tuple(values.shape[name == "lm_head.weight" :]) for name, values in state.items() if name != "d2t"}
        for state in (old, new)
    ]
    if shapes[0] != shapes[1]:
        names = sorted(dict(shapes[0].items() ^ shapes[1].items()))
        raise IncompatibleDraftError(f"the heads have other weights, or of other shapes: {', '.join(names)}")
    scale = after.row_scale / old["row_scale"]  # fc of both for rows of one size
    for name, values in new.items():
        if name in ("d2t", "row_scale"):
            continue
        if name == "lm_head.weight":
            values[rows >= 0] = values[rows >= 0].lerp(old[name][rows[rows >= 0]], share)
        elif name == "fc.weight":
            values.lerp_(old[name] / scale, share)
        else:
            values.lerp_(old[name] * scale if name == "mask_hidden" else old[name], share)
    return mean
