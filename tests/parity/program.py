#!/usr/bin/env python3
"""Start a server for llama.cpp's server tests, as LLAMA_SERVER_BIN_PATH: ours, or llama-server, with a local model.

The environment selects it: PARITY_SERVER is llama-server's path, or empty for ours; PARITY_MODEL and PARITY_HEAD are
the files in place of the models that the tests would download.
"""

from __future__ import annotations

import os
import sys

_DROPPED = {"--offline": 0, "--hf-repo": 1, "--hf-file": 1}


def main() -> None:
    peer = os.environ.get("PARITY_SERVER", "")
    flags, given = [], sys.argv[1:]
    while given:
        flag = given.pop(0)
        if flag in _DROPPED:
            del given[: _DROPPED[flag]]
        else:
            flags.append(flag)
    if "--model" not in flags and "--models-dir" not in flags:
        flags += ["-m", os.environ["PARITY_MODEL"]]
    if peer:
        os.execv(peer, [peer, *flags, "-t", "1"])
    # texts for a seed are llama-server's with its generator
    if "--model-draft" not in flags:
        flags += ["-md", os.environ["PARITY_HEAD"], "--spec-draft-n-max", "3"]
    os.execv(sys.executable, [sys.executable, "-m", "llama_cpp_eagle3", "serve", *flags, "--rng", "llama", "-t", "1"])


if __name__ == "__main__":
    main()
