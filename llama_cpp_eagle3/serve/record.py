"""`--record`: prompts and answers as JSON Lines, from which `train -f` takes its prompts."""

from __future__ import annotations

import errno
import json
import logging
import os
import queue
import threading
from pathlib import Path

from ..files.file_lock import locked
from ..files.whole_file import output_path
from .answer import Answer
from .api_errors import ApiError
from .tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_N_WAITING = 1024
"""Requests that wait for the disk, at most; further ones are not recorded."""
_N_TAIL = 1 << 16
LEFT_OUT = "requests with images, errors, and answers that were cancelled or are empty are left out"


class RecordFile:
    """A file of whole lines. Several processes may append to it.

    A line is one write, under a lock that also covers the limit. A line that a crash has cut off is removed by the next
    who opens the file.
    """

    def __init__(self, path: Path, n_bytes_max: int):
        """Open it, or make it: readable by its owner alone, since it holds conversations.

        Raises:
            OSError: the file cannot be written, or is no regular file.
        """
        self.path, self.n_bytes_max = output_path(path), n_bytes_max
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path, flags, 0o600)
        with locked(self._fd):
            self._cut_tail()

    @property
    def n_bytes(self) -> int:
        """Bytes of all lines."""
        return os.fstat(self._fd).st_size

    def append(self, line: bytes) -> bool:
        """Write a line; False = it would exceed the limit.

        Raises:
            OSError: the line could not be written; a part of it was removed again.
        """
        with locked(self._fd):
            before = self.n_bytes
            if before + len(line) > self.n_bytes_max:
                return False
            try:
                if os.write(self._fd, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            except OSError:
                os.ftruncate(self._fd, before)
                raise
            return True

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    def _cut_tail(self) -> None:
        end = self.n_bytes
        while end > 0:
            first = max(0, end - _N_TAIL)
            os.lseek(self._fd, first, os.SEEK_SET)
            newline = os.read(self._fd, end - first).rfind(b"\n")
            if newline >= 0:
                end = first + newline + 1
                break
            end = first
        if end < self.n_bytes:
            os.ftruncate(self._fd, end)


class Recorder:
    """Records answers in a thread of its own, until the limit or an error ends it; serving goes on."""

    def __init__(self, path: Path, n_bytes_max: int, tokenizer: Tokenizer):
        """Open the file, and log that prompts and answers are recorded in it.

        Raises:
            OSError: see `RecordFile`.
        """
        self._file, self._tokenizer = RecordFile(path, n_bytes_max), tokenizer
        self.n_recorded = 0
        self._is_over = False
        self._is_late = False
        self._waiting: queue.Queue[list[Answer] | None] = queue.Queue(_N_WAITING)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        _log.info(
            "prompts and answers are recorded in '%s': %.1f MiB of at most %.1f (--record-max-size); %s",
            *(self._file.path, self._file.n_bytes / 2**20, n_bytes_max / 2**20, LEFT_OUT),
        )

    def add(self, answers: list[Answer]) -> None:
        """Queue answers that have ended for recording, without waiting."""
        if self._is_over:
            return
        try:
            self._waiting.put_nowait(answers)
        except queue.Full:
            if not self._is_late:
                self._is_late = True
                _log.warning("'%s': the disk is too slow to record all answers, some are left out", self._file.path)

    def close(self) -> None:
        """Write the queue, and end."""
        self._waiting.put(None)
        self._thread.join()
        self._file.close()
        _log.info("%d answers were recorded in '%s'", self.n_recorded, self._file.path)

    def _run(self) -> None:
        while (answers := self._waiting.get()) is not None:
            for answer in answers:
                if not self._is_over and _is_whole(answer):
                    self._write(answer)

    def _write(self, answer: Answer) -> None:
        line = {"text": prompt_text(self._tokenizer, answer.prompt), "answer": answer.text}
        try:
            # a text may hold half of a surrogate pair, which JSON can escape and UTF-8 cannot encode
            if self._file.append(json.dumps(line).encode() + b"\n"):
                self.n_recorded += 1
                return
            why = f"it has reached {self._file.n_bytes_max / 2**20:.1f} MiB (--record-max-size)"
        except OSError as e:
            why = str(e)
        self._is_over = True
        _log.warning("'%s': nothing more is recorded, serving goes on: %s", self._file.path, why)


def _is_whole(answer: Answer) -> bool:
    """Whether an answer is recorded: it is complete and not empty, and its prompt has no images."""
    has_ended = answer.end is not None and answer.end.finish_reason in ("stop", "length")
    return has_ended and bool(answer.text) and min(answer.prompt) >= 0  # images are tokens below 0


def prompt_text(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text that is tokenized to a prompt: special tokens included, BOS left out."""
    text = tokenizer.detokenize(tokens[1:] if tokens[0] == tokenizer.vocab.bos else tokens)
    spaceless = text.removeprefix(" ")  # SentencePiece adds a space
    if spaceless != text:
        try:
            if tokenizer.tokenize(spaceless, True) == tokens:
                return spaceless
        except (ApiError, ValueError):  # the prompt was given as tokens that no text gives
            pass
    return text
