#!/bin/sh
# Measure everything and write it to README.md and results/. About half an hour on two cores; nothing else should run.
#
#   pip install '.[bench]'
#   sh benchmarks/run.sh
#
# PYTHON names another interpreter, LLAMA_CPP_TOOLS a folder of llama.cpp's tools (default: they are built).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

$python benchmarks/pair.py --publish
$python benchmarks/peer.py --publish
$python benchmarks/peer.py --random -c 2048 --n-prompts 2 -n 64 --draft-n-max 3 --publish
$python benchmarks/prefill.py --publish
$python benchmarks/overhead.py --publish
$python benchmarks/memory.py --publish
$python benchmarks/memory.py --random -c 2048 --type Q8_0 --publish
