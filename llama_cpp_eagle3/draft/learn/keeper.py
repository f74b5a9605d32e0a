"""Keeps texts in a folder as they end, in a thread of its own."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter, deque
from itertools import chain

import numpy as np
import numpy.typing as npt

from ..._core import NgramStore
from ...engine.keeping import KeptText
from ...files.line_file import LineFile, LineWriter
from ...files.whole_file import whole_file
from .folder import Folder
from .heads import Heads
from .texts import TextEntry, Texts, rows_path

_N_ANSWER_MIN = 8
"""Tokens of an answer that is kept."""
_N_RECENT = 64
"""Texts that a new one is compared with: it may go on from one of them."""
_N_SHARED_MIN = 8
_TEXTS_SHARE = 16
"""The file of texts takes a sixteenth of the folder at most: some five bytes for each token, rows take thousands."""
_N_NGRAMS = 1 << 22
"""Tokens of answers that n-grams are drafted from, the latest, at 12 bytes of memory each at most."""
_N_FREQUENT = 4096
"""Tokens that a small model always drafts, for the texts have them."""
_log = logging.getLogger("llama_cpp_eagle3")


class Keeper:
    """Writes the texts of one process."""

    def __init__(self, folder: Folder, heads: Heads, n_bytes_max: int):
        """Open the folder, which this process must hold, and log what is kept.

        Raises:
            OSError: it cannot be written.
        """
        self.folder, self.heads, self.n_bytes_max = folder, heads, n_bytes_max
        self.texts = Texts(folder)
        """The texts so far, those of this process included."""
        self._recent = deque(
            ((entry, np.array(self.texts.tokens(entry), np.int32)) for entry in [*self.texts][-_N_RECENT:]),
            maxlen=_N_RECENT,
        )
        self.n_bytes = folder.n_bytes
        """Bytes of the folder."""
        self._rows = deque(sorted(folder.rows.glob("*.npy")))
        self._random = random.Random()
        file = LineFile(folder.texts, max(1, n_bytes_max // _TEXTS_SHARE))
        _log.info(
            "--learn: prompts and answers are kept in '%s', for you alone, as tokens and hidden states: %.1f MiB of at "
            "most %.1f (--learn-max-size), %d texts so far. Requests with images, `store: false` or the header "
            "`X-Learn: no` are left out. `llama-cpp-eagle3 learn '%s' --forget` removes all of it",
            *(folder.path, self.n_bytes / 2**20, n_bytes_max / 2**20, len(self.texts), folder.path),
        )
        self._writer: LineWriter[KeptText] = LineWriter(file, self._line_of, "--learn-max-size", "kept")

    def take(self, text: KeptText) -> None:
        """Queue a text, without waiting."""
        self._writer.add(text)

    @property
    def n_written(self) -> int:
        """Texts of this process that are on the disk."""
        return self._writer.n_written

    def close(self) -> None:
        """Write what waits, and end."""
        self._writer.close()
        self.heads.save()

    def ngrams(self) -> NgramStore:
        """The answers so far, for the n-gram drafter, which adds those of this process by itself."""
        store = NgramStore(_N_NGRAMS)
        for tokens in self._latest_answers():
            store.add(tokens)
        store.merge()
        return store

    def frequent_tokens(self) -> list[int]:
        """Tokens that the answers so far have twice or more, the most frequent ones."""
        counts = Counter(chain.from_iterable(self._latest_answers()))
        return [token for token, n in counts.most_common(_N_FREQUENT) if n > 1]

    def _latest_answers(self) -> list[list[int]]:
        """Tokens of the answers of which n-grams are drafted, oldest first."""
        answers, n = list[list[int]](), 0
        for entry in reversed([*self.texts]):
            n += entry.n_answer
            if n > _N_NGRAMS // 2:
                break
            answers.append(self.texts.tokens(entry)[entry.n_prompt :])
        return answers[::-1]

    # in the writer's thread

    def _line_of(self, text: KeptText) -> bytes | None:
        self.heads.count(text.n_tokens, text.n_steps)
        if len(text.tokens) - text.n_prompt < _N_ANSWER_MIN:
            return None
        tokens = np.array(text.tokens, np.int32)
        parent, n_shared = self._find_parent(tokens)
        if n_shared == len(tokens):  # it is known
            return None
        first, rows = text.first_row, text.rows
        if parent is not None and parent.n_rows:  # rows that the parent has are kept once
            n_known = min(n_shared, parent.first_row + parent.n_rows)
            if parent.first_row <= first < n_known:
                rows, first = rows[n_known - first :], n_known
        number = max(self.texts.by_id, default=-1) + 1
        n_rows = self._write_rows(number, rows)
        goes_on = parent is not None and n_shared >= parent.n_prompt
        entry = TextEntry(
            id=number,
            parent=-1 if parent is None else parent.id,
            n_shared=n_shared,
            own=text.tokens[n_shared:],
            n_prompt=text.n_prompt,
            first_row=first if n_rows else 0,
            n_rows=n_rows,
            root=parent.root if parent is not None and goes_on else number,
            head=self.heads.version,
            n_steps=text.n_steps,
            n_tokens=text.n_tokens,
            time=int(time.time()),
        )
        self.texts.by_id[number] = entry
        self._recent.append((entry, tokens))
        line = entry.line()
        self.n_bytes += len(line)
        return line

    def _find_parent(self, tokens: npt.NDArray[np.int32]) -> tuple[TextEntry | None, int]:
        """The text that this one shares most with, and how many tokens."""
        best, n_best = None, 0
        for entry, known in self._recent:
            n = min(len(known), len(tokens))
            if n > n_best:
                differs = np.flatnonzero(known[:n] != tokens[:n])
                n = int(differs[0]) if len(differs) else n
                if n > n_best:
                    best, n_best = entry, n
        return (best, n_best) if n_best >= _N_SHARED_MIN else (None, 0)

    def _write_rows(self, number: int, rows: npt.NDArray[np.float16]) -> int:
        """Write rows, if there is room for them; returns how many."""
        if not len(rows):
            return 0
        while self.n_bytes + rows.nbytes > self.n_bytes_max and self._rows:
            # some of the older half, so that some of what is old stays
            i = self._random.randrange((len(self._rows) + 1) // 2)
            oldest = self._rows[i]
            del self._rows[i]
            self.n_bytes -= oldest.stat().st_size if oldest.exists() else 0
            oldest.unlink(missing_ok=True)
        if self.n_bytes + rows.nbytes > self.n_bytes_max:
            return 0
        path = rows_path(self.folder.rows, number)
        with whole_file(path, mode=0o600) as part, part.open("wb") as file:
            np.save(file, rows)
        self._rows.append(path)
        self.n_bytes += path.stat().st_size
        return len(rows)
