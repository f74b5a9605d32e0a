"""Start thousands of times with a spoilt folder of cached prefixes, and restore spoilt slot files.

    python tools/fuzz_prefixes.py --cases 2000      (all of them, and their results)
    python tools/fuzz_prefixes.py --case 123        (one of them, in this process)

In each case the answers must be those without a folder, unless a file was forged: its text is another's, and its
checksums are right. Files that were there and serve no more must be named in the log, and no process ends. A case is a
number: the same one spoils the same files. Child processes run them, so that the end of one tells which case it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

Way = Callable[[random.Random, Path, Path], bool]
"""Spoils a file in a folder; returns whether it is forged: other contents with right checksums."""

ARCHS = ("llama", "qwen35", "gemma3")
N_SEAL = 32
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 1 << 31, 1 << 63, 10**400, 1.5, float("inf"), float("nan"), True, None, "", "x", [], {}),
    *([[]], [[0, 0, 0]], [[1, 1, 1]], [[5, 1 << 40, 3]], {"a": 1}),
)  # fmt: skip


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.texts.append(record.getMessage())


class Fuzzer:
    """Folders of three kinds of targets with a head, and what they answer."""

    def __init__(self, folder: Path):
        from llama_cpp._logger import set_verbose

        from llama_cpp_eagle3._core import read_target
        from llama_cpp_eagle3.files.prefix_file import write_prefix
        from random_arch import write_random_arch
        from tiny import write_head

        set_verbose(False)
        self.folder = folder
        self.lines = Lines()
        logging.getLogger("llama_cpp_eagle3").addHandler(self.lines)
        rng = random.Random(0)
        first, second, third, end = ([rng.randrange(30, 120) for _ in range(n)] for n in (80, 40, 40, 4))
        self.talks = [[first, second, end], [first, third, end]]
        self.files: dict[str, tuple[str, str]] = {}
        self.texts: dict[str, list[list[int]]] = {}
        for arch in ARCHS:
            path = write_random_arch(folder, arch)
            info = read_target(str(path))
            head = folder / f"{arch}.head"
            write_head(head, _shape(info), boundaries=(1, info.n_layer - 1, info.n_layer))
            self.files[arch] = str(path), str(head)
            with closing(self.load(arch)) as llm:
                self.texts[arch] = [self.ask(llm, talk)[0] for talk in self.talks]
            with closing(self.load(arch, prefix_cache_dir=folder / f"{arch}.prefixes")) as llm:
                for talk in self.talks:
                    self.ask(llm, talk)
                write_prefix(folder / f"{arch}.slot", llm.loaded.maker, llm.engine.store_prefix(0))

    def load(self, arch: str, **options: Any) -> Any:
        """Load a target with its head."""
        from llama_cpp_eagle3 import Eagle3Llama

        target, head = self.files[arch]
        options = {"n_ctx": 512, "n_batch": 64, "n_threads": 1, "draft": "chain", "draft_n_max": 2} | options
        return Eagle3Llama(target, head, verbose=False, swa_full=False, cpu_kernels="on", **options)

    def ask(self, llm: Any, parts: list[list[int]]) -> tuple[list[int], int]:
        """Answer a talk; returns the tokens, and how many of the prompt were there."""
        from llama_cpp_eagle3.engine import Sampling

        tokens = [token for part in parts for token in part]
        ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts) - 1)]
        sequence = llm.engine.add(tokens, Sampling(temperature=0.0, ignore_eos=True), max_tokens=8, boundaries=ends)
        for _ in range(200):
            if sequence.is_done:
                break
            llm.engine.step()
        if sequence.result.error is not None:
            raise sequence.result.error
        assert sequence.is_done, "the request does not end"
        return sequence.generated, sequence.n_cached

    def try_case(self, seed: int, case: int) -> tuple[str, str]:
        """Spoil a folder or a slot file, and use it; returns the outcome, and how it was spoilt."""
        rng = random.Random(f"{seed}:{case}")
        arch = rng.choice(ARCHS)
        folder = self.folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        self.lines.texts.clear()
        try:
            if rng.random() < 0.2:
                shutil.copytree(self.folder / f"{arch}.prefixes", folder)
                shutil.copyfile(self.folder / f"{arch}.slot", folder / "slot")
                how, is_forged = spoil(rng, folder / "slot", folder)
                return f"{arch} {self._restore(arch, folder / 'slot', is_forged)}", f"slot {how}"
            shutil.copytree(self.folder / f"{arch}.prefixes", folder)
            hows, is_forged = [], False
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                path = rng.choice(sorted(folder.iterdir()))
                how, forged = spoil(rng, path, folder)
                hows.append(how)
                is_forged |= forged
            return f"{arch} {self._start(arch, folder, is_forged)}", "+".join(hows)
        except Exception as e:
            return f"{arch} UNCLEAN: {type(e).__name__}: {e}", "?"

    def _ask_all(self, llm: Any, is_forged: bool) -> list[tuple[list[int], int]]:
        """Answer all talks. What was forged may give NaN, which ends one request, and is dropped then."""
        from llama_cpp_eagle3.errors import LogitsError

        found = []
        for talk in self.talks:
            try:
                found.append(self.ask(llm, talk))
            except LogitsError:
                if not is_forged:
                    raise
                found.append(self.ask(llm, talk))
        return found

    def _start(self, arch: str, folder: Path, is_forged: bool) -> str:
        with closing(self.load(arch, prefix_cache_dir=folder)) as llm:
            found = self._ask_all(llm, is_forged)
        texts = [text for text, _ in found]
        if texts != self.texts[arch] and not is_forged:
            return "UNCLEAN: another text"
        n_cached = sum(n for _, n in found[:1])
        if n_cached == 0 and not self.lines.texts:
            return "unused"  # a file that was removed or renamed: there is nothing to say
        return "used" if n_cached else "said"

    def _restore(self, arch: str, path: Path, is_forged: bool) -> str:
        from llama_cpp_eagle3 import Eagle3Error
        from llama_cpp_eagle3.files.prefix_file import PrefixFileError, read_prefix

        with closing(self.load(arch)) as llm:
            try:
                head, stored = read_prefix(path)
                if llm.loaded.maker.differs(head.maker) or len(head.tokens) > 512:
                    return "said"
                llm.engine.restore_prefix(0, stored)
            except (PrefixFileError, OSError, Eagle3Error, ValueError):
                pass
            found = self._ask_all(llm, is_forged)
        texts = [text for text, _ in found]
        return "used" if texts == self.texts[arch] or is_forged else "UNCLEAN: another text"


def _shape(info: Any) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(arch=info.arch, n_embd=info.n_embd, n_vocab=info.n_vocab, n_layer=info.n_layer)


def spoil(rng: random.Random, path: Path, folder: Path) -> tuple[str, bool]:
    """Spoil a file; returns how, and whether it is forged: other contents with right checksums."""
    how = rng.choice(list(WAYS))
    if not path.is_file() or path.is_symlink():
        return "nothing", False
    return how, WAYS[how](rng, path, folder)


def _of_bytes(change: Callable[[random.Random, bytearray], bytes | bytearray]) -> Way:
    """A way to spoil a file by a change of its bytes."""

    def spoil_bytes(rng: random.Random, path: Path, folder: Path) -> bool:
        data = bytearray(path.read_bytes())
        path.write_bytes(change(rng, data) if data else data)
        return False

    return spoil_bytes


def _flip(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.choice((1, 1, 3, 50))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _flip_front(rng: random.Random, data: bytearray) -> bytearray:
    data[rng.randrange(min(len(data), 40))] = rng.choice((0, 1, 127, 128, 255))
    return data


def _zeros(rng: random.Random, data: bytearray) -> bytearray:
    at = rng.randrange(len(data) + 1)
    data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    return data


def _noise(rng: random.Random, data: bytearray) -> bytes:
    return rng.randbytes(rng.choice((0, 3, 100, 10_000)))


def _cut(rng: random.Random, path: Path, folder: Path) -> bool:
    os.truncate(path, rng.choice((0, 1, 15, 16, rng.randrange(path.stat().st_size + 1))))
    return False


def _grow(rng: random.Random, path: Path, folder: Path) -> bool:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.choice((1, 32, 5000))))
    return False


def _swap(rng: random.Random, path: Path, folder: Path) -> bool:
    other = rng.choice(sorted(p for p in folder.iterdir() if p.is_file()))
    data = path.read_bytes(), other.read_bytes()
    other.write_bytes(data[0])
    path.write_bytes(data[1])
    return False


def _rename(rng: random.Random, path: Path, folder: Path) -> bool:
    name = f"{path.name[:16]}-{rng.randbytes(12).hex()}.{rng.choice(('prefix', 'state'))}"
    path.rename(folder / name)
    return False


def _other_kind(rng: random.Random, path: Path, folder: Path) -> bool:
    path.rename(path.with_suffix(".state" if path.suffix == ".prefix" else ".prefix"))
    return False


def _replace_by(rng: random.Random, path: Path, folder: Path) -> bool:
    path.unlink()
    make: Callable[[], Any] = rng.choice(
        (
            path.mkdir,
            lambda: path.symlink_to(folder),
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to(path),
            lambda: os.mkfifo(path),
        )
    )
    make()
    return False


@dataclass
class _Parts:
    """The parts of a good file that its checksums are about."""

    text: bytes
    """JSON."""
    tokens: bytes
    body: bytes
    """States."""


def _forged(change: Callable[[random.Random, _Parts], None]) -> Way:
    """A way to forge a file: other contents with right checksums. Its name fits other tokens half of the time."""

    def forge(rng: random.Random, path: Path, folder: Path) -> bool:
        parts = _split(path.read_bytes())
        if parts is None:
            return False
        tokens = parts.tokens
        change(rng, parts)
        path.write_bytes(_sealed(parts))
        if parts.tokens != tokens and rng.random() < 0.5:
            path.rename(folder / f"{path.name[:16]}-{hashlib.sha256(parts.tokens).hexdigest()[:24]}{path.suffix}")
        return True

    return forge


def _header(rng: random.Random, parts: _Parts) -> None:
    """Another value in the JSON."""
    about = json.loads(parts.text)
    name = rng.choice(list(about))
    if isinstance(about[name], dict) and about[name] and rng.random() < 0.7:
        about[name][rng.choice(list(about[name]))] = rng.choice(VALUES)
    elif isinstance(about[name], int) and rng.random() < 0.5:
        about[name] += rng.choice((-1, 1, 4))
    else:
        about[name] = rng.choice(VALUES)
    if rng.random() < 0.2:
        del about[name]
    text = json.dumps(about).encode()
    if rng.random() < 0.1:
        text = rng.choice((b"[" * 100_000, b'{"a":' * 9000, b"", b"\xff", text + b"}", text.replace(b"0", b"9" * 5000)))
    parts.text = text


def _tokens(rng: random.Random, parts: _Parts) -> None:
    found = list(struct.unpack(f"<{len(parts.tokens) // 4}i", parts.tokens))
    if found:
        found[rng.randrange(len(found))] = rng.choice((-1, 0, 1, 31, 319, 100_000, 2**31 - 1, -(2**31)))
    parts.tokens = struct.pack(f"<{len(found)}i", *found)


def _body(rng: random.Random, parts: _Parts) -> None:
    """Other bytes of states: what llama.cpp and the drafters read."""
    found = bytearray(parts.body)
    at_front = rng.random() < 0.6
    for _ in range(rng.choice((1, 1, 4, 30)) if found else 0):
        at = rng.randrange(min(len(found), 200) if at_front else len(found))
        found[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    parts.body = bytes(found)


WAYS: dict[str, Way] = {
    "flip": _of_bytes(_flip), "flip-front": _of_bytes(_flip_front), "cut": _cut, "grow": _grow,
    "zeros": _of_bytes(_zeros), "noise": _of_bytes(_noise), "swap": _swap, "rename": _rename,
    "other-kind": _other_kind, "replace": _replace_by, "header": _forged(_header), "header-again": _forged(_header),
    "tokens": _forged(_tokens), "body": _forged(_body),
}  # fmt: skip


def _split(data: bytes) -> _Parts | None:
    """The parts of a good file."""
    from llama_cpp_eagle3.files.prefix_file import MAGIC

    at = len(MAGIC)
    if not data.startswith(MAGIC) or len(data) < at + 4:
        return None
    (n,) = struct.unpack_from("<I", data, at)
    at += 4
    try:
        n_tokens = int(json.loads(data[at : at + n])["n_tokens"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    end = at + n + 4 * n_tokens
    return _Parts(data[at : at + n], data[at + n : end], data[end + N_SEAL : -N_SEAL])


def _sealed(parts: _Parts) -> bytes:
    from llama_cpp_eagle3.files.prefix_file import MAGIC

    head = MAGIC + struct.pack("<I", len(parts.text)) + parts.text + parts.tokens
    data = head + hashlib.sha256(head).digest() + parts.body
    return data + hashlib.sha256(data).digest()


def work(seed: int, cases: list[int]) -> None:
    """Run cases in this process, and print the outcome of each."""
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder))
        for case in cases:
            outcome, how = fuzzer.try_case(seed, case)
            print(json.dumps({"case": case, "outcome": outcome, "how": how}), flush=True)


def run(n_cases: int, seed: int = 0, first: int = 0, timeout: float = 120.0) -> tuple[Counter[str], list[str]]:
    """Run cases in child processes; returns the outcomes, and what went wrong."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    cases = list(range(first, first + n_cases))
    while cases:
        some = cases[:100]
        command = [sys.executable, "-X", "faulthandler", __file__, "--seed", str(seed), "--work", json.dumps(some)]
        env = os.environ | {"GGML_NO_BACKTRACE": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            child = subprocess.run(command, capture_output=True, text=True, env=env, timeout=timeout + 5 * len(some))
            lines, end = child.stdout.splitlines(), f"exit status {child.returncode}: {child.stderr[-1500:]}"
        except subprocess.TimeoutExpired as e:
            lines, end = (e.stdout or b"").decode().splitlines(), "it hangs"
        done = [json.loads(line) for line in lines]
        for found in done:
            outcomes[found["outcome"].partition(":")[0]] += 1
            if "UNCLEAN" in found["outcome"]:
                wrong.append(f"case {found['case']} ({found['how']}): {found['outcome']}")
        if len(done) < len(some):
            wrong.append(f"case {some[len(done)]}: {end}")
        cases = cases[min(len(done) + 1, len(some)) :]
    return outcomes, wrong


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int, help="try this case alone, in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work or args.case is not None:
        work(args.seed, json.loads(args.work) if args.work else [args.case])
        return 0
    outcomes, wrong = run(args.cases, args.seed, args.first)
    print(json.dumps({"outcomes": dict(sorted(outcomes.items())), "wrong": wrong}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
