#!/bin/sh
# Measure everything and write it to README.md and results/. Over an hour on two cores; nothing else should run.
# speed.py goes on where it was interrupted; `rm -r benchmarks/results/speed` makes it begin again.
#
#   pip install '.[bench]'
#   sh benchmarks/run.sh
#
# PYTHON names another interpreter, LLAMA_CPP_TOOLS a folder of llama.cpp's tools (default: they are built).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

$python benchmarks/speed.py --publish
for head in Q8_0 Q4_0 random; do
    $python benchmarks/load.py --head "$head" --publish
done
$python benchmarks/serve.py --publish
$python benchmarks/serve_cost.py --publish
$python benchmarks/soak.py --publish
$python benchmarks/pair.py --publish
$python benchmarks/peer.py --publish
$python benchmarks/peer.py --random -c 2048 --n-prompts 2 -n 64 --draft-n-max 3 --publish
$python benchmarks/prefill.py --publish
$python benchmarks/overhead.py --publish
$python benchmarks/memory.py --publish
$python benchmarks/memory.py --random -c 2048 --type Q8_0 --publish
