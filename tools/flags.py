"""Write docs/flags.md: each flag of llama.cpp's tools, and its meaning in ours.

python tools/flags.py                 from tools/llama_flags.json and llama_cpp_eagle3/cli/flags
python tools/flags.py --renew [DIR]   first read llama.cpp's flags anew, from its tools (in DIR, or built)
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KNOWN = ROOT / "tools" / "llama_flags.json"
DOCUMENT = ROOT / "docs" / "flags.md"
TOOLS = {"speculative-simple": "llama-speculative-simple", "serve": "llama-server"}
"""Our command -> llama.cpp's tool."""

_OF_ALL = {"-h", "--version", "--usage"}
_HEAD = """# Flags

<!-- made by tools/flags.py from the help of llama.cpp's tools: change llama_cpp_eagle3/cli/flags -->

Which flags does the command line take? llama.cpp's, as llama.cpp {version} spells them, with its aliases, environment
variables, and values `on`, `off` and `auto` (also `1`, `true`, `enabled`, ...). The command line overrides the
environment. Flags are not abbreviated; `--long_names` may have underscores. `--help-all` says what each does, and
names its variable. What a command does not have is refused by name; a variable `LLAMA_ARG_...` that no command has is
named at the start, with the nearest one.

Flags for RoPE (`--rope-...`, `--yarn-...`) hold for the target and for what rotates as it does: its own block for
multi-token prediction, Gemma 4's assistant and, as in llama.cpp, a small model. A head or a block drafter keeps the
rotation that its file has, with which it was trained. With such a flag and a drafter the log says once for whom it
holds.

## As in llama.cpp
`speculative-simple` has those of llama-speculative-simple; `serve` and `batch` have llama-server's too. A flag has a
short and a long name here; llama.cpp's other names for it are taken too.
"""
_REFUSED = """
## Refused
llama.cpp has these, and the commands here do not have them. A flag that asks for what is so anyway, as `--no-perf`, is
accepted. The server's reasons for features that it lacks are in [serving](serving.md#differences-from-llama-server).

| why | flags |
|---|---|"""
_CHAT = """
## `llama-cpp-eagle3 chat`
It has the flags of speculative-simple that load and sample (at llama.cpp's temperature, 0.8), those of templates and
reasoning, and {}."""


def parse_help(text: str) -> list[dict[str, str | list[str]]]:
    """Parse a tool's --help into flags: section, names, value, env."""
    flags: list[dict[str, Any]] = []
    section = ""
    for line in text.splitlines():
        if title := re.fullmatch(r"----- (.*) params -----", line):
            section = title[1]
        elif line.startswith("-"):
            # the description begins in column 40, or on the next line if the names are longer
            head = line[:40] if len(line) > 40 and line[39] == " " else line
            names = re.match(r"(?:--?[\w.-]+,\s+)*--?[\w.-]+", head)
            assert names, line
            value = head[names.end() :].strip()
            flags.append({"section": section, "names": re.split(r",\s+", names[0]), "value": value, "env": ""})
        if flags and (env := re.search(r"\(env: (\w+)\)", line)):
            flags[-1]["env"] = env[1]
    return flags


def renew(folder: str | None) -> None:
    """Read the flags of llama.cpp's tools."""
    sys.path.append(str(ROOT / "benchmarks"))
    from comparison.peer_tools import get_tools
    from llama_cpp_eagle3._version import LLAMA_CPP_PYTHON_VERSION

    tools = get_tools(folder)
    found: dict[str, Any] = {"version": LLAMA_CPP_PYTHON_VERSION}
    for command, tool in TOOLS.items():
        run = subprocess.run([tools / tool, "--help"], capture_output=True, text=True, check=True)
        found[command] = parse_help(run.stdout + run.stderr)
    lines = [f' "version": {json.dumps(found.pop("version"))}']
    for command, flags in found.items():
        rows = ",\n".join(f"  {json.dumps(flag)}" for flag in flags)
        lines.append(f' "{command}": [\n{rows}\n ]')
    KNOWN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def our_flags() -> dict[str, list[Any]]:
    """Return command -> its flags."""
    from llama_cpp_eagle3.cli.server_options import FLAGS as SERVE
    from llama_cpp_eagle3.cli.speculative_simple import FLAGS as SIMPLE

    return {
        "speculative-simple": [flag for flags in SIMPLE.values() for flag in flags],
        "serve": [flag for flags in SERVE.values() for flag in flags],
    }


def document(known: Mapping[str, Any]) -> str:
    """Return the document's text."""
    from llama_cpp_eagle3.cli.flags import CONVERSATION
    from llama_cpp_eagle3.serve.absent import ABSENT

    ours = our_flags()
    parts = [_HEAD.format(version=known["version"]), "| of | flags |\n|---|---|"]
    for (tool, section), names in _as_they_are(known, ours).items():
        parts.append(f"| {tool}: {section} | {', '.join(names)} |")
    parts.append("\n## Other values, other defaults\n\n| flag | here |\n|---|---|")
    parts += dict.fromkeys(
        f"| {_spelled(flag)} | {_difference(flag)} |"
        for flags in ours.values()
        for flag in flags
        if _difference(flag) and not flag.is_ours
    )
    parts.append(_REFUSED)
    of_features = {absent.why for absent in ABSENT}
    by_reason: dict[str, dict[str, None]] = {}
    for flags in ours.values():
        for flag in flags:
            if flag.why_not and flag.why_not not in of_features:
                by_reason.setdefault(flag.why_not, {})[_short(flag)] = None
    parts += [f"| {why} | {', '.join(names)} |" for why, names in by_reason.items()]
    parts.append("\n## Ours alone\n\n| flag | |\n|---|---|")
    parts += dict.fromkeys(
        f"| {_spelled(flag)} | {flag.help} |" for flags in ours.values() for flag in flags if flag.is_ours
    )
    parts.append(_CHAT.format(", ".join(map(_short, CONVERSATION))))
    return "\n".join(parts) + "\n"


def _as_they_are(known: Mapping[str, Any], ours: Mapping[str, list[Any]]) -> dict[tuple[str, str], list[str]]:
    """Return (tool, section of its help) -> the flags that both have alike."""
    found: dict[tuple[str, str], list[str]] = {}
    seen: set[str] = set()
    for command, tool in TOOLS.items():
        by_name = {name: flag for flag in ours[command] for name in (*flag.names, *flag.no)}
        for entry in known[command]:
            names = entry["names"]
            if names[0] in seen or _OF_ALL & set(names):
                continue
            seen.add(names[0])
            flag = by_name[names[-1]]
            missing = [name for name in names if name not in (*flag.names, *flag.no)]
            assert not missing, missing
            if not flag.why_not and not _difference(flag):
                found.setdefault((tool, entry["section"]), []).append(_short(flag))
    return found


def _difference(flag: Any) -> str:
    """Return how a flag that is taken differs from llama.cpp's."""
    if flag.metavar and flag.metavar == flag.default:
        return str(flag.help)
    parts = [f"without {flag.lacks}"] if flag.lacks else []
    parts += [f"default: {flag.differs}"] if flag.differs else []
    return "; ".join(parts)


def _short(flag: Any) -> str:
    """Return one name of each length."""
    names = [*[name for name in flag.names if name[1] != "-"][:1], *[name for name in flag.names if name[1] == "-"][:1]]
    return f"`{' '.join(names)}`"


def _spelled(flag: Any) -> str:
    value = f" {flag.metavar}" if flag.metavar else ""
    spelled = f"{', '.join((*flag.names, *flag.no))}{value}".replace("|", "\\|")
    return f"`{spelled}`"


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", nargs="?", const="", metavar="DIR")
    args = parser.parse_args()
    if args.renew is not None:
        renew(args.renew or None)
    DOCUMENT.write_text(document(json.loads(KNOWN.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
