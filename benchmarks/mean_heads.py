"""Write the weighted mean of two heads, of which one went on from the other: it keeps more of both than either has.

    python benchmarks/mean_heads.py BEFORE.gguf AFTER.gguf OUTPUT.gguf --before 0.4

A head that learned from other texts forgets a part of what it knew; between the weights of both lies one that does both
(WiSE-FT, arXiv 2109.01903). AFTER is in F32 and gives everything but the weights' values; rows of tokens that BEFORE
does not draft are AFTER's. `llama-cpp-eagle3 quantize` makes the file smaller.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import gguf
import numpy as np

from llama_cpp_eagle3.errors import IncompatibleDraftError
from llama_cpp_eagle3.files.whole_file import whole_file


def mean(before: Path, after: Path, output: Path, share: float) -> None:
    """Write the head whose weights are `share` of the one before, and the rest of the one after.

    Raises:
        IncompatibleDraftError: the heads have other tensors, or the one after is not in F32.
    """
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(before).tensors}
    with whole_file(output) as part:
        shutil.copyfile(after, part)
        ours = {tensor.name: tensor for tensor in gguf.GGUFReader(part, "r+").tensors}
        if theirs.keys() != ours.keys():
            raise IncompatibleDraftError(f"'{before}' has other tensors than '{after}': {theirs.keys() ^ ours.keys()}")
        rows = {int(token): row for row, token in enumerate(theirs["d2t"].data)}
        drafted = [(row, rows[token]) for row, token in enumerate(map(int, ours["d2t"].data)) if token in rows]
        for name, tensor in ours.items():
            if name == "d2t":
                continue
            old = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
            is_output = name == "output.weight"
            shape = (len(tensor.data), *old.shape[1:]) if is_output else old.shape
            if tensor.tensor_type != gguf.GGMLQuantizationType.F32 or tensor.data.shape != shape:
                found = f"{tensor.tensor_type.name} {tensor.data.shape}"
                raise IncompatibleDraftError(f"'{after}': expected {name} in F32, of {shape}, found {found}")
            at, from_row = np.array(drafted).T if is_output else (slice(None), slice(None))
            tensor.data[at] = (1 - share) * tensor.data[at] + share * old[from_row]


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--before", dest="share", type=float, default=0.4, help="its share (default: 0.4)")
    args = parser.parse_args()
    mean(args.before, args.after, args.output, args.share)


if __name__ == "__main__":
    main()
