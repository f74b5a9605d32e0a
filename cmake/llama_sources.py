"""Print the folder with llama.cpp's sources, called by LlamaCpp.cmake: llama_sources.py VERSION FOLDER [--all].

pip fetches the source distribution of llama-cpp-python (its index, cache and proxy settings apply); what we compile
with is unpacked into FOLDER: headers, llama.cpp's chat and grammar code, its decoder of sounds,
and their licences. With --all everything is (tests/run_arm.py compiles ggml).
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = "vendor/llama.cpp/"
FOLDERS = (
    "include",
    "ggml/include",
    "ggml/src",
    "ggml/src/ggml-cpu",
    "common",
    "common/jinja",
    "common/parsers",
    "src",
    "vendor/nlohmann",
    "vendor/miniaudio",
)
FOLDERS += ("models/templates",)  # for tests
FILES = ("LICENSE", "licenses/LICENSE-jsonhpp")
SUFFIXES = (".h", ".hpp", ".cpp", ".jinja")


def fetch(version: str, out: Path, is_all: bool) -> None:
    """Unpack what we need of the pinned source distribution into `out`, or all of llama.cpp."""
    with tempfile.TemporaryDirectory() as tmp:
        # --no-build-isolation: pip only asks for the metadata, and what that needs is what builds us
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-build-isolation", "--no-binary", "llama-cpp-python", "--dest", tmp]
        command += [f"llama-cpp-python=={version}"]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise SystemExit(
                f"cannot fetch the sources of llama-cpp-python {version} with pip. Without a network, unpack its "
                "source distribution and pass '-C cmake.define.LLAMA_CPP_SOURCE_DIR=<its folder vendor/llama.cpp>'"
            )
        (sdist,) = Path(tmp).glob("*.tar.gz")
        with tarfile.open(sdist) as tar:
            for member in tar:
                name = member.name.partition("/")[2]
                path = Path(name.removeprefix(VENDOR))
                is_ours = path.parent.as_posix() in FOLDERS and path.suffix in SUFFIXES
                is_ours |= is_all and name.startswith(VENDOR)
                file = tar.extractfile(member) if is_ours or path.as_posix() in FILES else None
                if file:
                    (out / path).parent.mkdir(parents=True, exist_ok=True)
                    (out / path).write_bytes(file.read())


if __name__ == "__main__":
    version, out = sys.argv[1], Path(sys.argv[2])
    is_all = "--all" in sys.argv[3:]
    stamp, wanted = out / ".unpacked", f"{version} {'all' if is_all else (FOLDERS, FILES, SUFFIXES)}"
    if not stamp.exists() or stamp.read_text() != wanted:
        fetch(version, out, is_all)
        stamp.write_text(wanted)
    print(out.as_posix())
