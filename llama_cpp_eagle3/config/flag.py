"""Flags and how their values are read, in llama.cpp's spelling."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files.text_file import read_text

TRUTHY = ("on", "enabled", "true", "1")
FALSY = ("off", "disabled", "false", "0")
_AUTO = ("auto", "-1")
_VARIABLES = ("LLAMA_", "MTMD_")
"""The beginning of the names of llama.cpp's environment variables."""

NO_OTHER_DRAFTS = "drafts come from EAGLE-3 heads, a block in the model's own file, small models and n-grams here"
NO_FIT = "options are not reduced to fit the memory: use -ngl and -c"
TEXT_LOG = "the log goes to stderr through Python's logging, as text"

Reader = Callable[[str], Any]
"""Text -> value; ValueError or argparse.ArgumentTypeError if it cannot be one."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of llama.cpp, or of ours."""

    names: tuple[str, ...]
    metavar: str = ""
    """Empty: a switch."""
    help: str = ""
    read: Reader = str
    default: Any = None
    dest: str = ""
    """Empty: its first long name."""
    no: tuple[str, ...] = ()
    """Names that switch it off."""
    env: str = ""
    bare: str | None = None
    """The value that it has without one, if the value may be left out."""
    repeats: bool = False
    """Whether each use adds to a list."""
    lacks: str = ""
    """Values that llama.cpp takes and this flag does not, and why."""
    differs: str = ""
    """How its default differs from llama.cpp's, and why."""
    why_not: str = ""
    """Why it is refused; `no` then has the names that are accepted, as they name the present behaviour."""
    is_ours: bool = False
    """Whether llama.cpp has no such flag."""
    title: str = ""
    """The group of the help that an option's flag is in."""

    @property
    def on(self) -> tuple[str, ...]:
        """Names that switch it on; for a refused pair these may be the accepted ones."""
        return self.no if self.why_not and self.names[0].startswith("--no-") else self.names

    @property
    def off(self) -> tuple[str, ...]:
        """Names that switch it off."""
        return self.names if self.why_not and self.names[0].startswith("--no-") else self.no

    @property
    def attribute(self) -> str:
        """The attribute that gets its value."""
        return self.dest or next(n for n in self.names if n.startswith("--")).lstrip("-").replace("-", "_")


def integer(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r:.80}") from None


def number(text: str) -> float:
    """A number, or inf or nan, which options refuse by their limits."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r:.80}") from None


def path_of(text: str) -> Path:
    """A path. An empty one would be the working directory, where a variable that is not set was meant."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found ''")
    return Path(text)


_READERS: dict[Any, Reader] = {int: integer, float: number, Path: path_of}
"""Python's readers, and ours, whose errors name no types."""


def flag(spec: str, help: str = "", read: Reader = str, **more: Any) -> Flag:
    """A flag. spec: its names, its value and its variable; after a bar the names that switch it off."""
    own, _, off = spec.partition(" | ")
    words = own.split()
    names = tuple(word for word in words if word.startswith("-"))
    variables = [word for word in words if word.startswith(_VARIABLES)]
    value = [word for word in words if word not in (*names, *variables)]
    return Flag(
        names, "".join(value), help, _READERS.get(read, read), env="".join(variables), no=tuple(off.split()), **more
    )


def on_off(text: str) -> bool:
    """`on` or `off`, with llama.cpp's synonyms."""
    if text in TRUTHY:
        return True
    if text in FALSY:
        return False
    raise argparse.ArgumentTypeError(f"expected on or off, found {text!r}")


def on_off_auto(text: str) -> str:
    """`on`, `off` or `auto`, with llama.cpp's synonyms."""
    if text in _AUTO:
        return "auto"
    try:
        return "on" if on_off(text) else "off"
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected on, off or auto, found {text!r}") from None


def one_of(names: Iterable[str]) -> Reader:
    """One of these words."""
    known = tuple(names)

    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(known)}, found {text!r}")
        return text

    return read


def only(value: str, why: str) -> Reader:
    """Reads a flag that can have only one value here; why: the reason, for the error."""

    def read(text: str) -> str:
        if text != value and not (value in FALSY and text in FALSY):
            raise argparse.ArgumentTypeError(f"only {value} is possible here, found {text!r}: {why}")
        return value

    return read


def place_in(names: Iterable[str], first: int = 0) -> Reader:
    """One of these words, as its number in llama.h, which has `first` for the first of them."""
    known = tuple(names)
    read_word = one_of(known)
    return lambda text: known.index(read_word(text)) + first


def port_number(text: str) -> int:
    """A port; 0: the system chooses a free one."""
    try:
        n = int(text)
    except ValueError:
        n = -1
    if not 0 <= n < 1 << 16:
        raise argparse.ArgumentTypeError(f"expected a port, 1 to 65535 or 0 for a free one, found {text!r}")
    return n


def mebibytes(text: str) -> int:
    """A number of MiB, as bytes."""
    return integer(text) << 20


def layers(text: str) -> int:
    """A number of layers; -1 for auto and all."""
    if text in ("all", "auto"):
        return -1
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, auto or all, found {text!r}") from None


def items(text: str) -> list[str]:
    """Things with commas between them; quotes keep a comma in one, as in llama.cpp's lists."""
    import csv

    try:
        rows = list(csv.reader([text], doublequote=True))
    except csv.Error as e:
        raise argparse.ArgumentTypeError(
            f"expected things with commas between them, found {text[:60]!r}: {e}"
        ) from None
    found = [item for item in (rows[0] if rows else []) if item]
    if not found:  # such as a variable that is not set
        raise argparse.ArgumentTypeError(f"expected something, or things with commas between them, found {text!r:.80}")
    return found


def numbers(text: str) -> list[float]:
    """Numbers with commas, or slashes, between them."""
    try:
        return [float(part) for part in text.replace("/", ",").split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, found {text!r}") from None


def scaled(text: str) -> list[tuple[str, float]]:
    """FNAME:SCALE,..."""
    found = []
    for item in items(text):
        path, _, scale = item.rpartition(":")
        try:
            found.append((path, float(scale)))
        except ValueError:
            path = ""
        if not path:
            raise argparse.ArgumentTypeError(f"expected FNAME:SCALE, found {item!r}")
    return found


def overrides(text: str) -> list[tuple[str, str]]:
    """PATTERN=BUFFER,... of tensors."""
    found = []
    for item in text.split(","):
        pattern, equals, buffer = item.partition("=")
        if not equals or not pattern:
            raise argparse.ArgumentTypeError(f"expected PATTERN=BUFFER, found {item!r}")
        found.append((pattern, buffer))
    return found


def key_values(text: str) -> dict[str, bool | int | float | str]:
    """KEY=TYPE:VALUE,... of a model's header."""
    readers: dict[str, Reader] = {"int": int, "float": float, "bool": _true_or_false, "str": str}
    found = {}
    for item in items(text):
        key, equals, typed = item.partition("=")
        kind, colon, value = typed.partition(":")
        if not equals or not colon or kind not in readers:
            raise argparse.ArgumentTypeError(f"expected KEY=TYPE:VALUE with int, float, bool or str, found {item!r}")
        try:
            found[key] = readers[kind](value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{key}: {value!r} is no {kind}") from None
    return found


def _true_or_false(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def logit_bias(text: str) -> tuple[int, float]:
    """TOKEN_ID(+/-)BIAS."""
    at = max(text.rfind("+"), text.rfind("-"))
    try:
        return int(text[:at]), float(text[at:])
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected TOKEN_ID+BIAS or TOKEN_ID-BIAS, found {text!r}") from None


def json_of(text: str) -> Any:
    """The value of a JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise argparse.ArgumentTypeError(f"expected JSON: {e}") from None


def typed(text: str) -> str:
    """A text of the command line, in which Python keeps bytes that the locale cannot read as halves of characters."""
    try:
        return text.encode(errors="surrogateescape").decode()
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"expected text in UTF-8, found {text[:60]!a}") from None


def text_of(text: str) -> str:
    """The text of a file."""
    try:
        return read_text(Path(text).expanduser())
    except (OSError, ValueError) as e:
        raise argparse.ArgumentTypeError(f"'{text}' cannot be read as text: {e}") from None
