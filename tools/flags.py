"""Write docs/flags.md: each flag of llama.cpp's tools, and what ours does with it.

python tools/flags.py                 from tools/llama_flags.json and llama_cpp_eagle3/cli/flags
python tools/flags.py --renew [DIR]   read llama.cpp's flags anew before, from its tools (in DIR, or built)
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
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
environment. Flags are not abbreviated; `--long_names` may have underscores. What a command does not support is
refused by name.

Flags for RoPE (`--rope-...`, `--yarn-...`) hold for the target and for what rotates as it does: its own block for
multi-token prediction, Gemma 4's assistant and, as in llama.cpp, a small model. A head or a block drafter keeps the
rotation that its file has, with which it was trained. With such a flag and a drafter the log says once for whom it
holds.
"""


def parse_help(text: str) -> list[dict[str, str | list[str]]]:
    """The flags of a tool's --help: section, names, value, env."""
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
    from llama_cpp_eagle3._version import LLAMA_CPP_PYTHON_VERSION
    from llama_cpp_eagle3.bench.peer import get_tools

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
    """Command -> its flags."""
    from llama_cpp_eagle3.cli.server_options import FLAGS as SERVE
    from llama_cpp_eagle3.cli.speculative_simple import FLAGS as SIMPLE

    return {
        "speculative-simple": [flag for flags in SIMPLE.values() for flag in flags],
        "serve": [flag for flags in SERVE.values() for flag in flags],
    }


def what_ours_does(flag: Any, names: Iterable[str]) -> str:
    """One cell of the table."""
    if flag.why_not and flag.no:
        accepted = ", ".join(f"`{name}`" for name in flag.no)
        return f"{accepted} alone: {flag.why_not}"
    if flag.why_not:
        return f"refused: {flag.why_not}"
    if flag.metavar and flag.metavar == flag.default:
        return str(flag.help)
    missing = [name for name in names if name not in (*flag.names, *flag.no)]
    assert not missing, missing
    parts = ["yes"]
    parts += [f"without {flag.lacks}"] if flag.lacks else []
    parts += [f"default: {flag.differs}"] if flag.differs else []
    return "; ".join(parts)


def document(known: Mapping[str, Any]) -> str:
    """The document's text."""
    from llama_cpp_eagle3.cli.flags import CONVERSATION, TEMPLATE

    parts = [_HEAD.format(version=known["version"])]
    shown: set[str] = set()
    ours = our_flags()
    for command, tool in TOOLS.items():
        by_name = {name: flag for flag in ours[command] for name in (*flag.names, *flag.no)}
        only = "" if command == "speculative-simple" else ", beside those above"
        parts.append(f"## {tool}: `llama-cpp-eagle3 {command}`{only}\n\n| flag | variable | here |\n|---|---|---|")
        for entry in known[command]:
            names = entry["names"]
            if names[0] in shown or _OF_ALL & set(names):
                continue
            shown.add(names[0])
            cell = what_ours_does(by_name[names[-1]], names)
            value = f" {entry['value']}" if entry["value"] else ""
            variable = f"`{entry['env']}`" if entry["env"] else ""
            shown_as = f"{', '.join(names)}{value}".replace("|", "\\|")
            parts.append(f"| `{shown_as}` | {variable} | {cell} |")
        parts.append("")
    parts.append("## Defaults that differ\n\n| command | flag | here |\n|---|---|---|")
    told: set[tuple[tuple[str, ...], str]] = set()
    for command, flags in ours.items():
        for flag in flags:
            if flag.differs and (flag.names, flag.differs) not in told:
                told.add((flag.names, flag.differs))
                parts.append(f"| {command} | `{flag.names[0]}` | {flag.differs} |")
    parts.append("\n## Ours alone\n\n| flag | |\n|---|---|")
    seen = set()
    for flags in ours.values():
        for flag in flags:
            if flag.is_ours and flag.names not in seen:
                seen.add(flag.names)
                value = f" {flag.metavar}" if flag.metavar else ""
                parts.append(f"| `{', '.join(flag.names)}{value}` | {flag.help} |")
    parts.append(
        "\n## `llama-cpp-eagle3 chat`\n\nThe flags of speculative-simple that load and sample (at "
        "llama.cpp's temperature, 0.8), and\n\n| flag | variable | |\n|---|---|---|"
    )
    for flag in (*CONVERSATION, *TEMPLATE):
        value = f" {flag.metavar}" if flag.metavar else ""
        shown_as = f"{', '.join((*flag.names, *flag.no))}{value}".replace("|", "\\|")
        variable = f"`{flag.env}`" if flag.env else ""
        parts.append(f"| `{shown_as}` | {variable} | {f'refused: {flag.why_not}' if flag.why_not else flag.help} |")
    return "\n".join(parts) + "\n"


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
