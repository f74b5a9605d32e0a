#!/bin/sh
# Measure everything and write it to results/. Some hours on two cores; nothing else should run.
# speed.py continues an interrupted run; `rm -r benchmarks/results/speed` makes it begin again.
#
#   pip install '.[bench]' './heads[train]' ./models
#   sh benchmarks/run.sh
#
# PYTHON names another interpreter, LLAMA_CPP_TOOLS a folder of llama.cpp's tools (default: they are built).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

$python benchmarks/speed.py --publish

folder=$($python -c 'from llama_cpp_eagle3.draft.costs import cache_dir; print(cache_dir() / "inflated")')
$python benchmarks/inflate.py --type Q4_0 --head-type Q4_0 "$folder"
$python benchmarks/inflate.py --type Q4_0 --head-type Q4_0 --random-head "$folder"
target="$folder/pystdlib-1B-Q4_0.gguf" head="$folder/pystdlib-1B-eagle3-Q4_0.gguf"
for text in edits quotes free; do
    $python benchmarks/text.py --replay benchmarks/replay/$text.jsonl -m "$target" -md "$head" -n 80 --runs 2 --sides 'auto,head,ngram 3,ngram 1' --publish
done
$python benchmarks/text.py --own -n 400 --n-prompts 6 --runs 3 -t 1 --cpu-time --sides 'auto,text,plain,ngram 0,ngram 1,ngram 3,server 3' --publish
$python benchmarks/first.py -m "$target" -md "$folder/pystdlib-1B-random-eagle3-Q4_0.gguf" --n-prompts 8 --publish
$python benchmarks/first.py -m "$target" -md "$head" --n-prompts 8 -n 24 --unsure --n-max 3 4 --publish
toys=$($python -c 'from llama_cpp_eagle3.draft.costs import cache_dir; print(cache_dir() / "toys")')
[ -e "$toys/dflash.npz" ] || $python benchmarks/train_toys.py --minutes 60
for kind in simple mtp hybrid dflash; do
    $python benchmarks/drafters.py $kind --n-max 1 2 3 --publish
    for n in 4 8; do
        $python benchmarks/drafters.py $kind --sequences $n --publish
    done
done
for head in Q8_0 Q4_0 random; do
    $python benchmarks/load.py --head "$head" --publish
done
$python benchmarks/serve.py --publish
$python benchmarks/serve_cost.py --publish
$python benchmarks/soak.py --publish
$python benchmarks/pair.py --publish
$python benchmarks/sampled.py -t 1 -n 48 --temperatures 0 0.6 0.8 1.0 --drafts "chain of 4" tree --publish
$python benchmarks/peer.py --publish
$python benchmarks/peer.py --random -c 2048 --n-prompts 2 -n 64 --draft-n-max 3 --publish
$python benchmarks/passes.py --type Q4_0 Q4_K_M Q8_0 --publish
$python benchmarks/prefill.py --publish
$python benchmarks/overhead.py --publish
$python benchmarks/memory.py --publish
$python benchmarks/memory.py --random -c 2048 --type Q8_0 --publish
