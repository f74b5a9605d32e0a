"""A small model as the drafter (draft-simple): against llama-server with the same one, useless ones, many sequences.

Both are the bundled target, enlarged to 1B parameters and to a sixteenth of that, with the same tokens; they differ by
what Q4_0 leaves of their weights. The useless one is the small one with the values of each matrix shuffled. All times
are the process's own of the processor, with one thread, so that other programs disturb them less.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import common
import numpy as np

from llama_cpp_eagle3 import Eagle3Llama, models, planning
from llama_cpp_eagle3.bench import peer
from llama_cpp_eagle3.bench.figures import table
from llama_cpp_eagle3.bench.inflate import inflate, inflated_pair, quantize_target
from llama_cpp_eagle3.bench.load import Load, load_own
from llama_cpp_eagle3.bench.random_model import Shape
from llama_cpp_eagle3.bench.runs import Peer, load
from llama_cpp_eagle3.bench.server import Server
from llama_cpp_eagle3.convert.gguf_file import open_gguf

N_PROMPT = 32
SMALL = Shape(12, 512, 1024, 8, 4, 32000, 1024, 8000)
Side = Callable[[], Load]


def small_models(folder: Path) -> tuple[Path, Path]:
    """The small model, and the useless one."""
    found = folder / "pystdlib-small-Q4_0.gguf", folder / "pystdlib-small-shuffled-Q4_0.gguf"
    if not all(path.exists() for path in found):
        with TemporaryDirectory() as temporary:
            model, head = Path(temporary, "model.gguf"), Path(temporary, "head.gguf")
            inflate(*models.bundled_pair(), SMALL, model, head)
            quantize_target(model, found[0], "Q4_0", 1)
            rng = np.random.default_rng(0)
            for tensor in open_gguf(model, "r+").tensors:
                if len(tensor.shape) > 1:
                    values = np.asarray(tensor.data).reshape(-1)
                    values[:] = rng.permutation(values)
            quantize_target(model, found[1], "Q4_0", 1)
    return found


def drafting(llm: Eagle3Llama, prompts: list[list[int]], n: int, draft: str, n_max: int | None = None) -> Side:
    """Ours with a setting."""

    def run() -> Load:
        llm.draft = draft
        if n_max is not None:
            llm.draft_n_max = n_max
        return load_own(llm, prompts, n, process_time)

    return run


def take_turns(sides: dict[str, Side], n_runs: int, title: str) -> dict[str, list[Load]]:
    """Run all in turn; a first round warms up and does not count."""
    found: dict[str, list[Load]] = {name: [] for name in sides}
    for i in range(n_runs + 1):
        for name, side in sides.items():
            common.progress(f"{title}: {name}, run {i}")
            load = side()
            if i:
                found[name].append(load)
    return found


def rows_of(found: dict[str, list[Load]], plain: str = "plain") -> list[list[str]]:
    """Medians, and the median ratio to plain of the same round."""
    rows = []
    for name, loads in found.items():
        ratio = median(
            x.tokens_per_second_decoding / y.tokens_per_second_decoding
            for x, y in zip(loads, found[plain], strict=True)
        )
        drafted, accepted = sum(x.drafted for x in loads), sum(x.accepted for x in loads)
        rate = f"{100 * accepted / drafted:.1f} %" if drafted else "-"
        speed = median(x.tokens_per_second_decoding for x in loads)
        rows.append([name, f"{speed:.1f}", f"{ratio:.2f}", str(drafted), rate])
    return rows


def main() -> None:
    p = common.parser(__doc__, runs=3)
    p.set_defaults(n_predict=48, n_prompts=3, threads=1, ctx_size=512)
    p.add_argument("--n-max", type=int, nargs="+", default=[2, 4, 8], help="of llama-server, and of our fixed chains")
    p.add_argument("--sequences", type=int, default=1, help="so many at once; more than one without llama-server")
    args = p.parse_args()
    folder, n_seq = planning.cache_dir() / "inflated", args.sequences
    target = str(inflated_pair(folder, "1B", "Q4_0")[0])
    small, useless = (str(path) for path in small_models(folder))
    options = {"n_ctx": n_seq * args.ctx_size, "n_parallel": n_seq}
    with ExitStack() as stack:

        def loaded(draft: str | None) -> Eagle3Llama:
            more = {} if draft is None else {"draft": "auto"}
            llm = stack.enter_context(load(target, draft, args.threads, **options, **more))
            if draft is not None:
                llm.draft_sources = ("simple",)
            return llm

        plain, ours, poor = (loaded(draft) for draft in (None, small, useless))
        prompts = [plain.tokenize(text.encode())[:N_PROMPT] for text in common.prompts(args)]
        if n_seq > 1:
            prompts = (prompts * n_seq)[:n_seq]
        n, n_auto = args.n_predict, ours.draft_n_max
        sides = {"plain": drafting(plain, prompts, n, "auto"), "auto": drafting(ours, prompts, n, "auto", n_auto)}
        for n_max in args.n_max if n_seq == 1 else ():
            sides[f"chain {n_max}"] = drafting(ours, prompts, n, "chain", n_max)
            other = Peer(peer.get_tools(args.tools), None, target, small, args.threads, n_ctx=args.ctx_size)
            server = stack.enter_context(Server(other, n_max))
            sides[f"llama-server {n_max}"] = lambda server=server: server.run_many(prompts, n, server.process_time)
        sides["auto, useless"] = drafting(poor, prompts, n, "auto")
        found = take_turns(sides, args.runs, f"{n_seq} sequences")
    text = (
        f"{table(['side', 'tokens/s', 'of plain', 'drafted', 'accepted'], rows_of(found))}\n\n"
        f"Tokens per second of processor time while all of {n_seq} sequences generate; medians of {args.runs} rounds "
        f"in which the sides took turns, ratios within a round. {len(prompts)} prompts of up to {N_PROMPT} tokens, "
        f"{n} tokens each; n-grams do not draft."
    )
    data = {"runs": {name: [vars(x) for x in loads] for name, loads in found.items()}}
    variant = "small_model" if n_seq == 1 else f"small_model-{n_seq}"
    title = f"A small model as the drafter, {n_seq} sequences" if n_seq > 1 else "A small model as the drafter"
    common.finish(args, common.Section("small_model", title, text, data, variant), [target, small])


if __name__ == "__main__":
    main()
