"""Write the weighted mean of two heads, of which one went on from the other: it keeps more of both than either has.

    python benchmarks/mean_heads.py -m TARGET BEFORE.gguf AFTER.gguf OUTPUT.gguf --before 0.4

AFTER gives the tokens to draft. The output is in F32; `llama-cpp-eagle3 quantize` makes it smaller.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from llama_cpp_eagle3.models import resolve
from llama_cpp_eagle3_heads.train.build import head_from_gguf
from llama_cpp_eagle3_heads.train.job import Job
from llama_cpp_eagle3_heads.train.mean import mean_head
from llama_cpp_eagle3_heads.train.session import write_head

_N_CTX, _N_STEPS = 512, 4  # of a training that does not follow


def write_mean(target: Path, before: Path, after: Path, output: Path, share: float) -> None:
    """Write the head whose weights are `share` of the one before, and the rest of the one after.

    Raises:
        IncompatibleDraftError: the heads have other weights, or were made for another target.
    """
    heads = (head_from_gguf(path, target, _N_CTX, _N_STEPS) for path in (before, after))
    with tempfile.TemporaryDirectory() as work:
        write_head(Job(target, output, work=Path(work), outtype="f32"), mean_head(*heads, share))


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="target: a file or a name")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--before", dest="share", type=float, default=0.4, help="its share (default: 0.4)")
    args = parser.parse_args()
    write_mean(Path(resolve(args.model, print)), args.before, args.after, args.output, args.share)


if __name__ == "__main__":
    main()
