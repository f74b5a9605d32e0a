"""Print the folder with the headers of llama-cpp-python, called by LlamaCpp.cmake: llama_headers.py VERSION FOLDER.

Takes those of an installed llama-cpp-python of that version, else lets pip fetch the source distribution and unpacks
only the headers into FOLDER.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PARENTS = ("vendor/llama.cpp/include", "vendor/llama.cpp/ggml/include")


def installed(version: str) -> Path | None:
    """The include folder beside the installed package, if it is the right version."""
    try:
        dist = importlib.metadata.distribution("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return None
    include = Path(str(dist.locate_file("include")))
    return include if dist.version == version and (include / "llama.h").exists() else None


def fetched(version: str, out: Path) -> Path:
    """Unpack the headers of the pinned source distribution into `out`."""
    stamp = out / f".{version}"
    if stamp.exists():
        return out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        # --no-build-isolation: pip only asks for the metadata, and what that needs is what builds us
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-build-isolation", "--no-binary", "llama-cpp-python", "--dest", tmp]
        command += [f"llama-cpp-python=={version}"]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise SystemExit(
                f"cannot fetch the headers of llama-cpp-python {version} with pip. Either install it and build with "
                "'pip install --no-build-isolation', or pass '-C cmake.define.LLAMA_CPP_INCLUDE_DIR=<folder>'"
            )
        (sdist,) = Path(tmp).glob("*.tar.gz")
        with tarfile.open(sdist) as tar:
            for member in tar:
                folder, _, name = member.name.partition("/")[2].rpartition("/")
                file = tar.extractfile(member) if folder in PARENTS and name.endswith(".h") else None
                if file:
                    (out / name).write_bytes(file.read())
    stamp.touch()
    return out


if __name__ == "__main__":
    print((installed(sys.argv[1]) or fetched(sys.argv[1], Path(sys.argv[2]))).as_posix())
