"""Train a head on one GPU within minutes: several processes generate the target's answers, then the head learns.

    python benchmarks/code_prompts.py prompts.jsonl --n 12000
    python benchmarks/gpu_head.py prompts -m target.gguf -f prompts.jsonl --work work
    python benchmarks/gpu_head.py texts -m target.gguf --work work --seconds 150
    python benchmarks/gpu_head.py train -m target.gguf --work work --seconds 150 -o head.gguf

The first command needs no GPU. One sampling process leaves a GPU idle most of the time, since the CPU reads the logits.
`llama-cpp-eagle3 train` is the command for all other cases: it continues after an interruption, plans, and judges the
head.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch

from llama_cpp_eagle3 import Eagle3Llama
from llama_cpp_eagle3_heads.train.build import boundaries_of
from llama_cpp_eagle3_heads.train.data import Store, Text, file_prompts
from llama_cpp_eagle3_heads.train.first_head import init_head, make_head
from llama_cpp_eagle3_heads.train.job import Job, decided, log
from llama_cpp_eagle3_heads.train.rows import AnswerGenerator, Source, cache_path
from llama_cpp_eagle3_heads.train.session import write_head
from llama_cpp_eagle3_heads.train.trainer import Settings, Trainer


def job_of(args: argparse.Namespace) -> Job:
    """Return the job that `train` would get."""
    settings = Settings(
        minutes=args.seconds / 60, lr=args.lr, eval_every=args.eval_every, ttt_steps=args.ttt_steps, warmup=50
    )
    return Job(
        args.model, args.output or args.work / "head.gguf", init=args.init, work=args.work,
        cache=args.work / "rows", max_tokens=args.predict, n_ctx=args.ctx_size, n_parallel=args.parallel,
        n_ff=args.feed_forward, draft_vocab=args.draft_vocab, outtype=args.outtype, n_gpu_layers=args.gpu_layers,
        optimizer=args.optimizer, batch=args.batch, ttt_steps=args.ttt_steps, training=settings,
    )  # fmt: skip


def make_part(job: Job, part: int, n_parts: int, until: float) -> None:
    """Generate one process's answers, in a store of its own; rows go to the common folder."""
    torch.set_num_threads(1)
    store = Store(job.folder / f"part{part}")
    boundaries = boundaries_of(job.target, job.layers)
    generator = AnswerGenerator(
        job.target, boundaries, job.n_ctx, job.n_parallel, job.n_prompt_max, job.answer_device, n_threads=1,
        n_threads_batch=1, n_gpu_layers=job.n_gpu_layers,
    )  # fmt: skip
    try:
        prompts = [p for p in Store(job.folder).unanswered() if p.id % n_parts == part]
        start, before = time.time(), store.n_tokens
        for sample in generator(prompts, job.max_tokens, job.training.seed, lambda: time.time() > until):
            sample.save(cache_path(job.rows, sample.id))
            store.add_text(Text(sample.id, sample.tokens.tolist(), sample.n_prompt, sample.temperature, "file"))
        log(f"part {part}: {(store.n_tokens - before) / (time.time() - start):.0f} tokens/s")
    finally:
        generator.close()


def prompts(args: argparse.Namespace) -> None:
    """Tokenize the file's prompts into the work folder."""
    job = job_of(args)
    with Eagle3Llama(job.target, n_ctx=512, verbose=False) as llm:
        found = file_prompts(llm, (args.file,), job.n_prompt_max, log)
    Store(job.folder).add_prompts(found)
    log(f"{len(found)} prompts, {sum(len(prompt.tokens) for prompt in found)} tokens")


def texts(args: argparse.Namespace) -> None:
    """Generate answers in all processes, and merge them into the work folder's store."""
    until = time.time() + args.seconds
    command = [sys.executable, *sys.argv, "--until", str(until)]
    parts = [subprocess.Popen([*command, "--part", str(i)]) for i in range(args.processes)]
    failed = [part.wait() for part in parts]
    if any(failed):
        log(f"some processes ended with an error: {failed}")
    store = Store(args.work)
    known = {text.id for text in store.texts}
    for i in range(args.processes):
        for text in Store(args.work / f"part{i}").texts:
            if text.id not in known:
                store.add_text(text)
    n_tokens = sum(len(text.tokens) for text in store.texts)
    log(f"{len(store.texts)} texts, {store.n_tokens} tokens of answers, {n_tokens} with prompts")


def train(args: argparse.Namespace) -> None:
    """Train the head on the texts in the work folder."""
    job = decided(job_of(args))
    found = [text for text in Store(job.folder).texts if len(text.tokens) - text.n_prompt >= 8]
    torch.manual_seed(job.training.seed)
    head = init_head(job) or make_head(job, found)
    trainer = Trainer(head, Source(None, job.cache), found, job.folder, job.training)
    log(trainer.describe())
    trainer.run()
    log(f"best: {trainer.load_best()}; {trainer.step} steps, {trainer.epoch} epochs")
    write_head(job, trainer.head)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prompts", "texts", "train"))
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-f", "--file", type=Path, help="prompts, as for train")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--init", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("-np", "--parallel", type=int, default=64)
    parser.add_argument("-c", "--ctx-size", type=int, default=2048)
    parser.add_argument("-n", "--predict", type=int, default=512)
    parser.add_argument("-ngl", "--gpu-layers", type=int, default=-1)
    parser.add_argument("--feed-forward", type=int, default=3072)
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--outtype", default="q8_0")
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--ttt-steps", type=int, default=4)
    parser.add_argument("--eval-every", type=int, default=250)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part is not None:
        make_part(job_of(args), args.part, args.processes, args.until)
    else:
        {"prompts": prompts, "texts": texts, "train": train}[args.what](args)


if __name__ == "__main__":
    main()
