"""Editing of what is typed in a terminal, by readline: pasted lines are one message, the arrows bring earlier ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ..files.cache_dir import cache_dir
from ..files.json_file import read_regular

HISTORY_NAME = "chat_history.jsonl"
"""Name of the file with messages in the cache folder."""
_N_KEPT = 1000  # messages
_N_BYTES_MAX = 1 << 20  # what a message may have, to be kept, and a fourth of what the file may have


class LineEditor:
    """readline, with a history that outlives the process: a JSON text a line, which its owner alone may read."""

    def __init__(self, say: Callable[[str], None]):
        """Read the history.

        say: called once if messages are not kept.

        Raises:
            ImportError: there is no readline, as on Windows.
        """
        import readline

        self._readline = readline
        self.path: Path = cache_dir() / HISTORY_NAME
        self._say, self._is_kept = say, True
        # Python switches it off for its own prompt; without it each line that is pasted would be a message
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.set_auto_history(False)
        for text in self._read():
            readline.add_history(text)

    def add(self, text: str) -> None:
        """Add a message to the history."""
        n = self._readline.get_current_history_length()
        if not text.strip() or (n and self._readline.get_history_item(n) == text):
            return
        self._readline.add_history(text)
        line = json.dumps(text) + "\n"
        if not self._is_kept or len(line) > _N_BYTES_MAX:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as f:
                f.write(line)
        except OSError as e:
            self._give_up(e)

    def _give_up(self, e: OSError) -> None:
        self._is_kept = False
        self._say(f"(messages are not kept for the next run: {e})")

    def _read(self) -> list[str]:
        """The messages of the file; a file that has grown too large keeps the last ones."""
        found = []
        try:
            for line in read_regular(self.path).split(b"\n"):
                try:
                    text = json.loads(line)
                except (ValueError, RecursionError):  # a line that was cut
                    continue
                if isinstance(text, str):
                    found.append(text)
            if self.path.stat().st_size > 4 * _N_BYTES_MAX:
                found = found[-_N_KEPT // 4 :]
                self.path.write_text("".join(json.dumps(text) + "\n" for text in found), encoding="utf-8")
        except FileNotFoundError:
            return []
        except OSError as e:
            self._give_up(e)
        return found[-_N_KEPT:]
