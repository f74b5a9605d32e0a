"""Load thousands of spoilt model files: each loads and decodes, or raises an error of ours; no process ends.

    python tools/fuzz_files.py --cases 20000              (all of them, and their results)
    python tools/fuzz_files.py --cases 500 --add FILE     (the next ones after those of FILE, added to it)
    python tools/fuzz_files.py --case 1234                (one of them, in this process)

A case is a number: the same one makes the same file. Each worker loads many files and names the current one, so that
their end, or their silence, tells which file it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

ARCHS = ("llama", "qwen3moe", "gemma3", "deepseek2", "gpt-oss", "qwen35moe", "falcon-h1", "gemma4")
HEADS: tuple[dict[str, Any], ...] = (
    {},
    {"norm_before_residual": True, "own_embd": True, "n_vocab_dft": None},
    {"dialect": "fork", "norm_output": True, "fc_norm": True},
    {"n_layer": 2, "qk_norm": True, "attention_bias": True, "sliding_window": 16, "use_aux_hidden_state": False},
    {"ftype": "q4_0", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    {"kv_lora_rank": 32, "q_lora_rank": 24, "head_dim": 20, "n_rot": 8, "mask_token": 5},
)
TEXT = b"The quick br\xc3\xb6wn f\xff\xfe \x00\n\t<|endoftext|><s> 12345 \xe2\x96\x81 \xf0\x9f\x98\x80</s>"
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 0},
    {"temperature": 1.5, "top_k": 200, "typical_p": 0.5},
    {"temperature": 0.8, "mirostat_mode": 2},
    {"temperature": 0.0, "repeat_penalty": 1.5},
)
N_SECONDS = 60.0  # after which a case counts as hanging


class Fuzzer:
    """Makes and runs cases; imports what it needs of llama_cpp when it is made."""

    def __init__(self, folder: Path, archs: tuple[str, ...], options: dict[str, Any]):
        import logging

        from llama_cpp._logger import set_verbose

        from random_arch import write_random_arch
        from tiny import write_head, write_target

        set_verbose(False)
        logging.getLogger("gguf").setLevel(logging.WARNING)
        self._folder, self._options = folder, options
        self._targets = [write_random_arch(folder, row) for row in archs]
        self._pair_target = write_target(folder / "pair.gguf")
        self._heads = [
            Path(write_head(folder / f"head{i}.gguf", self._pair_target, **v).path) for i, v in enumerate(HEADS)
        ]
        self._head_of: dict[Path, Path] = {}

    def good_files(self) -> list[Path]:
        """Return the files that the cases are made from."""
        return [*self._targets, Path(self._pair_target.path), *self._heads]

    def make(self, seed: int, case: int, path: Path) -> tuple[Path, bool, str, random.Random]:
        """Write a case's file; return its source, whether that is a head, and the mutations."""
        from gguf_mutate import STRUCTURED, mutate

        rng = random.Random(f"{seed}:{case}")
        is_head = rng.random() < 0.25
        base = rng.choice(self._heads if is_head else self._targets)
        refit = (lambda file: None) if is_head else self._refit
        data, how = mutate(rng, base.read_bytes(), refit, STRUCTURED)
        path.write_bytes(data)
        return base, is_head, how, rng

    def _refit(self, file: Any) -> None:
        """Give a file the tensors that llama.cpp wants for its keys, if it takes them."""
        from gguf_raw import RawFile, Tensor, serialize
        from random_arch import make_tensors, written_shape

        metadata = self._folder / "keys.gguf"
        metadata.write_bytes(serialize(RawFile(file.fields, [])))
        old = {t.name: t for t in file.tensors}
        try:
            made = {name.encode(): data for name, data in try_keys(metadata, make_tensors).items()}
        except (ValueError, MemoryError):
            return
        file.tensors = []
        for name, data in made.items():
            dims = list(written_shape(data)[::-1])
            if name in old and old[name].dims == dims:
                file.tensors.append(old[name])
            else:
                file.tensors.append(Tensor(name, dims, 0, data.tobytes()))

    def head_for(self, base: Path) -> Path:
        """Return a head for the model that a target was made from."""
        from llama_cpp_eagle3._core import read_target
        from tiny import write_head

        if base not in self._head_of:
            info = read_target(str(base))
            shape: Any = SimpleNamespace(arch=info.arch, n_embd=info.n_embd, n_vocab=info.n_vocab, n_layer=info.n_layer)
            path = base.with_suffix(".head")
            self._head_of[base] = Path(write_head(path, shape, boundaries=(1, info.n_layer - 1, info.n_layer)).path)
        return self._head_of[base]

    def try_case(self, seed: int, case: int, path: Path) -> tuple[str, str]:
        """Make a case and load it; return the outcome and the mutations."""
        base, is_head, how, rng = self.make(seed, case, path)
        kind = "head" if is_head else base.stem
        if is_head:
            target, head, options = self._pair_target.path, str(path), {}
        else:
            what = rng.random()
            target = str(path)
            head = str(self.head_for(base)) if what < 0.3 else None
            options = {"draft_target_layers": [1, 2]} if 0.3 <= what < 0.4 else {}
        return f"{kind} {use(target, head, options | self._options, rng)}", how


def try_keys(metadata: Path, make_tensors: Any) -> dict[str, Any]:
    """Return the tensors that llama.cpp wants for a file of keys; raise ValueError if it refuses the keys."""
    from llama_cpp_eagle3._core import LoadGuard, check_header

    check_header(str(metadata))
    with LoadGuard():
        return dict(make_tensors(metadata))


def use(target: str, head: str | None, options: dict[str, Any], rng: random.Random) -> str:
    """Load a model and use it as an application does; a clean error is an outcome too."""
    from llama_cpp_eagle3 import Eagle3Error
    from loading import load, take

    n_parallel = rng.choice((1, 1, 1, 1, 2))
    options = {"n_ctx": rng.choice((*[64] * 40, 0)), "n_batch": 32, "n_parallel": n_parallel} | options
    try:
        with closing(load(target, head, **options)) as llm:
            tokens = llm.tokenize(TEXT, special=rng.random() < 0.5)
            llm.detokenize(tokens, special=rng.random() < 0.5)
            prompt = [t for t in (1, 2, 3) if t < llm.n_vocab()]
            take(llm, prompt, 4)
            sampling = rng.choice(SAMPLING)
            llm.create_completion("The text", max_tokens=3, **sampling)
            if n_parallel > 1:
                llm.generate_batch([prompt, prompt[:1]], max_tokens=3, **sampling)
    except (ValueError, Eagle3Error) as e:
        return f"refused: {type(e).__name__}: {e}"
    except MemoryError as e:
        if options["n_ctx"] == 0:  # n_ctx as the file says
            return f"refused: {type(e).__name__}: {e}"
        return f"UNCLEAN: {type(e).__name__}: {e}"
    except Exception as e:
        return f"UNCLEAN: {type(e).__name__}: {e}"
    return "decoded"


@dataclass
class Record:
    """The results of many cases."""

    n_cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: int, outcome: str, how: str) -> None:
        """Count a finished case."""
        self.n_cases += 1
        kind, _, rest = outcome.partition(" ")
        what, _, message = rest.partition(": ")
        self.outcomes[f"{kind} {what}"] += 1
        self.mutations.update(how.split("+"))
        if what == "UNCLEAN":
            self.failures.append({"case": case, "end": message, "outcome": outcome, "how": how})

    def summary(self) -> dict[str, Any]:
        """Return the figures to keep."""
        ends = Counter("signal" if f["end"].startswith("SIG") else f["end"].split(":")[0] for f in self.failures)
        return {
            "cases": self.n_cases,
            "decoded": sum(n for k, n in self.outcomes.items() if k.endswith("decoded")),
            "refused": sum(n for k, n in self.outcomes.items() if k.endswith("refused")),
            "signals": ends["signal"],
            "hangs": ends["hang"],
            "unclean": len(self.failures) - ends["signal"] - ends["hang"],
            "outcomes": dict(sorted(self.outcomes.items())),
            "mutations": dict(sorted(self.mutations.items())),
        }


class Worker:
    """A child process that runs cases, and is started again after a case that ended it."""

    def __init__(self, args: argparse.Namespace, record: Record, lock: threading.Lock, cases: list[int], folder: Path):
        self._args, self._record, self._lock = args, record, lock
        self._cases, self._folder = cases, folder

    def run(self) -> None:
        """Go through all cases."""
        done = 0
        while done < len(self._cases):
            done += self._run_some(self._cases[done:])

    def _run_some(self, cases: list[int]) -> int:
        """Run cases until the process ends; return the number of finished ones."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-X", "faulthandler", __file__, "--worker", "--seed", str(self._args.seed)]
        command += ["--archs", ",".join(self._args.archs), "--options", json.dumps(self._args.options)]
        command += ["--folder", str(self._folder)]
        with open(self._folder / "stderr", "wb") as errors:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=_environment()
            )
        assert child.stdin
        assert child.stdout
        threading.Thread(target=_feed, args=(child.stdin, cases), daemon=True).start()
        with child.stdout:
            lines = _Lines(child.stdout)
            for i, case in enumerate(cases):
                line = lines.read(self._args.timeout if i else self._args.timeout + 60)
                if not line:
                    hangs = line is None
                    if hangs:
                        child.kill()
                    self._fail(case, child.wait(), hangs)
                    return i + 1
                answer = json.loads(line)
                assert answer["case"] == case
                with self._lock:
                    self._record.add(case, answer["outcome"], answer["how"])
        child.wait()
        return len(cases)

    def _fail(self, case: int, status: int, hangs: bool) -> None:
        tail = (self._folder / "stderr").read_bytes()[-3000:].decode(errors="replace")
        end = "hang" if hangs else signal.Signals(-status).name if status < 0 else f"exit {status}"
        with self._lock:
            self._record.n_cases += 1
            self._record.failures.append({"case": case, "end": end, "stderr": tail})
            print(f"case {case}: {end}", file=sys.stderr, flush=True)


class _Lines:
    """Reads lines of a pipe with a time limit."""

    def __init__(self, pipe: IO[bytes]):
        self._pipe, self._rest = pipe, b""

    def read(self, timeout: float) -> bytes | None:
        """Return the next line; b"" at the end, None if none came in time."""
        end = time.monotonic() + timeout
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self._pipe.fileno(), 65536)
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _feed(pipe: IO[bytes], cases: list[int]) -> None:
    try:
        for case in cases:
            pipe.write(b"%d\n" % case)
        pipe.close()
    except BrokenPipeError:
        pass


def _environment() -> dict[str, str]:
    return os.environ | {"GGML_NO_BACKTRACE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def work(args: argparse.Namespace) -> None:
    """Run as a worker: read numbers of cases, print the outcome of each."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    fuzzer = Fuzzer(args.folder, args.archs, args.options)
    for line in sys.stdin:
        case = int(line)
        outcome, how = fuzzer.try_case(args.seed, case, args.folder / "case.gguf")
        answers.write(json.dumps({"case": case, "outcome": outcome[:500], "how": how}) + "\n")
        answers.flush()


def run(args: argparse.Namespace) -> Record:
    """Run all cases in `args.jobs` processes."""
    record, lock = Record(), threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        threads = []
        for i in range(args.jobs):
            cases = list(range(args.first + i, args.first + args.cases, args.jobs))
            worker = Worker(args, record, lock, cases, Path(folder) / str(i))
            threads.append(threading.Thread(target=worker.run))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return record


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="try this case alone, in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=N_SECONDS, help="seconds after which a case hangs")
    parser.add_argument(
        "--archs", type=lambda s: tuple(s.split(",")), default=ARCHS, help="rows of arch_keys.py, or all"
    )
    parser.add_argument("--options", type=json.loads, default={}, help="keyword arguments of Eagle3Llama, as JSON")
    parser.add_argument(
        "--add", type=Path, metavar="FILE", help="go on after the cases of FILE, and add to its figures"
    )
    parser.add_argument("--out", type=Path, help="where to write the failures, as JSON")
    parser.add_argument("--folder", type=Path, help="where to put a case's file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.archs == ("all",):
        from arch_keys import ROWS

        args.archs = tuple(ROWS)
    return args


def added(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Return the sums of figures."""
    return {k: added(a.get(k, {}), v) if isinstance(v, dict) else a.get(k, 0) + v for k, v in b.items()} | {
        k: v for k, v in a.items() if k not in b
    }


def main() -> int:
    """Run as a program; fails if a case did."""
    args = parse_args()
    if args.worker:
        work(args)
        return 0
    if args.case is not None:
        folder = args.folder or Path(tempfile.mkdtemp())
        print(*Fuzzer(folder, args.archs, args.options).try_case(args.seed, args.case, folder / "case.gguf"), sep="\n")
        return 0
    start = time.monotonic()
    before = json.loads(args.add.read_text()) if args.add and args.add.exists() else {}
    args.first += before.get("cases", 0)
    record = run(args)
    summary = record.summary() | {"seconds": round(time.monotonic() - start)}
    print(json.dumps(summary, indent=1))
    if args.add:
        args.add.write_text(json.dumps(added(before, summary), indent=1) + "\n")
    if args.out:
        args.out.write_text(json.dumps(record.failures, indent=1))
    return 1 if record.failures else 0


if __name__ == "__main__":
    sys.exit(main())
