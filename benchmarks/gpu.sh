#!/bin/sh
# Build, test and measure on a machine with a GPU that reaches no network: Python 3.12, a C++ compiler, and nvcc for CUDA,
# or for Vulkan the packages of docs/install.md (headers that are new enough, glslc, SPIR-V headers, a driver).
#
#   sh benchmarks/gpu.sh prepare     with a network: fill benchmarks/gpu/ with sources and wheels (git ignores it)
#   sh benchmarks/gpu.sh             there, beside that folder: all parts in one go, under ten minutes on 16 cores
#   sh benchmarks/gpu.sh vulkan      the same with Vulkan instead of CUDA
#   sh benchmarks/gpu.sh PART ...    some parts, where the first ones were done: build files tests one profile heads many
#   sh benchmarks/gpu.sh dry         all parts without CUDA at tiny sizes; with LLAMA_CPP_TOOLS and PYTHON of an
#                                    environment with this package, also without prepare and without building
#
# The parts run in this order; parts for which the time is too short are left out:
#   build     llama.cpp with CUDA, once, its libraries for llama-cpp-python and its programs for comparison; then us
#   files     (beside build) targets and heads of PAIRS with random weights: speed does not depend on their values
#   tests     taps, drafting, rollback, lossless, batches and every kind of head with target and draft on the GPU
#   one       one sequence: plain, chains of 1 3 5 7, trees, auto, llama-server with draft-eagle3 at the same lengths;
#             acceptance is drawn by fixed odds on both sides (SpecForge's 2.90 tokens at 3 and 3.86 at 7 steps)
#   profile   the time of a step by its parts: our own clocks, and nsys's launches and copies if nsys is there
#   heads     drafting step by step, in one pass (P-EAGLE) and with latent attention, at the first shape of PAIRS
#   many      1 to 32 sequences: auto and plain against llama-server plain and with draft-eagle3
#
# Environment: PYTHON (python3), CUDA_ARCH (90), VULKAN_ARGS (for cmake: -DVulkan_INCLUDE_DIR=... for newer headers),
# GPU_WORK (where to build, default /tmp/eagle3-gpu), OUT (the folder of figures, default GPU_WORK), BUDGET (570 s),
# PAIRS ("shape:type ..."), HEAD_TYPE (Q8_0), NGL (-1), N_PREDICT (64), RUNS (2), N_SEQS (1,2,4,8,16,32), N_MANY (of
# PAIRS, for many: 1).
#
# Figures of an H200 are in benchmarks/README.md (parts build, files, tests and one; the others were run by `dry` alone).
set -eu
cd "$(dirname "$0")/.."
root=$PWD
python=${PYTHON:-python3}
stock=$root/benchmarks/gpu
version=$(cat vendor/llama_cpp_python_version)
work=${GPU_WORK:-/tmp/eagle3-gpu}
out=${OUT:-$work}
begin=$(date +%s)

# cumulative odds: 1 + the first three = 2.90, 1 + all seven = 3.86
ODDS=0.789,0.622,0.490,0.360,0.265,0.195,0.143

prepare() {
    rm -rf "$stock"
    mkdir -p "$stock/wheels" "$stock/source"
    $python -m pip download --quiet --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" --dest "$stock/source"
    tar -xzf "$stock/source/llama_cpp_python-$version.tar.gz" -C "$stock/source"
    (
        cd "$stock/source/llama_cpp_python-$version"
        llama=vendor/llama.cpp
        # the files that CMake reads; web pages, models, documents and tests are most of the rest
        XZ_OPT=-9 tar -cJf "$stock/llama_cpp_python.tar.xz" --exclude "$llama/tools/ui/src" \
            --exclude "$llama/tools/ui/static" --exclude "$llama/tools/ui/tests" --exclude "$llama/tools/mtmd/test-*" \
            CMakeLists.txt pyproject.toml README.md LICENSE.md llama_cpp $llama/CMakeLists.txt $llama/LICENSE $llama/src \
            $llama/ggml $llama/include $llama/common $llama/cmake $llama/vendor $llama/tools $llama/examples $llama/pocs \
            $llama/app
    )
    rm -r "$stock/source"
    # one platform per tag that wheels come with: pip compares exactly
    platforms=
    for tag in 28 27 24 17 12 5; do platforms="$platforms --platform manylinux_2_${tag}_x86_64"; done
    # shellcheck disable=SC2086
    $python -m pip download --quiet --only-binary :all: --python-version 3.12 --implementation cp $platforms \
        --platform manylinux2014_x86_64 --dest "$stock/wheels" \
        numpy typing-extensions diskcache jinja2 scikit-build-core pybind11 cmake ninja pytest hypothesis gguf safetensors tqdm
    du -sh "$stock"
}

left() { echo $((BUDGET - $(date +%s) + begin)); }

# print the next part's name, unless less than $1 seconds are left
has_time() {
    if [ "$(left)" -lt "$1" ]; then
        echo "== $2: left out, $(left) of $BUDGET seconds are left and it may take $1"
        return 1
    fi
    echo "== $2 ($(left) seconds left)"
}

# run at most $1 seconds, and never more than are left; a failure is printed, and the next part runs
within() {
    limit=$1
    shift
    [ "$(left)" -lt "$limit" ] && limit=$(left)
    [ "$limit" -gt 0 ] || return 0
    timeout "$limit" "$@" || echo "FAILED ($?, 124 = out of time after $limit s): $*"
}

install() {
    mkdir -p "$work" "$out"
    $python -m venv --clear "$work/venv"
    PATH=$work/venv/bin:$PATH
    pip install --quiet --no-index --no-deps --no-compile "$stock"/wheels/*.whl
    tar -xJf "$stock/llama_cpp_python.tar.xz" -C "$work"
}

# llama.cpp is compiled once: llama-cpp-python takes the libraries from the programs' folder
build() {
    has_time 120 "llama.cpp of llama-cpp-python $version"
    llama=$work/vendor/llama.cpp
    # shellcheck disable=SC2086
    cmake -S "$llama" -B "$work/llama" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_RPC=ON \
        ${CMAKE_ARGS:-} > "$out/build.txt" 2>&1
    cmake --build "$work/llama" --target llama llama-server llama-speculative-simple llama-bench llama-quantize \
        >> "$out/build.txt" 2>&1 || { tail -n 30 "$out/build.txt"; exit 1; }
    has_time 60 "llama-cpp-python and llama-cpp-eagle3"
    CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install --quiet --no-index --no-build-isolation --no-deps "$work"
    pip install --no-index --no-build-isolation --no-deps --config-settings build-dir="$work/build" \
        --config-settings cmake.define.LLAMA_CPP_SOURCE_DIR="$llama" . 2>&1 | tail -n 3
    pip install --quiet --no-index --no-build-isolation --no-deps ./heads
}

files() {
    for pair in $PAIRS; do
        python "$root/benchmarks/random_model.py" "$work/files" --shape "${pair%:*}" --type "${pair#*:}" \
            --head-type "$HEAD_TYPE"
    done > "$out/files.txt" 2>&1 || { cat "$out/files.txt"; exit 1; }
}

model() { echo "$work/files/random-${1%:*}-${1#*:}.gguf"; }
draft() { echo "$work/files/random-${1%:*}-eagle3-$HEAD_TYPE.gguf"; }

tests() {
    has_time 60 "tests on the device"
    # F32 products in F32: the reference is compared to four digits
    NVIDIA_TF32_OVERRIDE=0 within 200 python -m pytest -q --maxfail 10 -p no:cacheprovider -p no:benchmark -m "$TESTS" \
        tests/core tests/drafters tests/files tests/kernels tests/target tests/engine tests/llama > "$out/tests.txt" 2>&1
    tail -n 15 "$out/tests.txt"
}

one() {
    for pair in $PAIRS; do
        has_time 40 "one sequence, $pair" || continue
        within 110 python "$root/benchmarks/compare.py" -m "$(model "$pair")" -md "$(draft "$pair")" -ngl "$NGL" -c 1024 \
            -n "$N_PREDICT" -r "$RUNS" --n-prompts 2 --fresh 1 --synthetic-acceptance $ODDS --n-max 1,3,5,7 \
            --tree-depth 3,5 --tree-topk 2,4 --tree-tokens 7,15 --peer server --json "$out/one-$pair.json" \
            --markdown "$out/one-$pair.md"
    done
}

profile() {
    for pair in $PAIRS; do
        has_time 20 "a step, $pair" || continue
        within 60 python benchmarks/overhead.py -m "$(model "$pair")" -md "$(draft "$pair")" -ngl "$NGL" -c 1024 \
            -n "$N_PREDICT" --n-prompts 8 --runs "$RUNS" > "$out/step-$pair.md"
        sed -n '3,11p' "$out/step-$pair.md"
        command -v nsys > /dev/null || { echo "no nsys: no launches and copies"; continue; }
        within 90 nsys profile --force-overwrite true --trace cuda --output "$work/step" \
            python -m llama_cpp_eagle3 speculative-simple -m "$(model "$pair")" -md "$(draft "$pair")" -ngl "$NGL" -n 48 \
            --spec-draft-n-max 3 -p "int main" > /dev/null 2>&1
        within 60 nsys stats --force-export true --format table --report cuda_api_sum,cuda_gpu_kern_sum,cuda_gpu_mem_size_sum \
            "$work/step.nsys-rep" > "$out/nsys-$pair.txt" 2> /dev/null
        head -n 40 "$out/nsys-$pair.txt"
    done
}

heads() {
    pair=${PAIRS%% *}
    has_time 20 "kinds of heads, ${pair%:*}" || return 0
    within 60 python benchmarks/heads.py -m "$(model "$pair")" --shape "${pair%:*}" --types "$HEAD_TYPE" -ngl "$NGL" --runs 10 \
        > "$out/heads.md"
    sed -n '3,9p' "$out/heads.md"
}

many() {
    n=0
    for pair in $PAIRS; do
        n=$((n + 1))
        [ "$n" -le "$N_MANY" ] || break
        for n_seq in $(echo "$N_SEQS" | tr , ' '); do
            has_time 25 "$n_seq sequences, $pair" || continue
            within 100 python benchmarks/load.py -m "$(model "$pair")" -md "$(draft "$pair")" -ngl "$NGL" -c 1024 \
                -n "$N_PREDICT" --runs "$RUNS" --n-parallel "$n_seq" --n-max 3 --synthetic-acceptance $ODDS \
                > "$out/many-$pair-$n_seq.md"
            sed -n '5,13p' "$out/many-$pair-$n_seq.md"
        done
    done
}

defaults() {
    BUDGET=${BUDGET:-570} HEAD_TYPE=${HEAD_TYPE:-Q8_0} N_PREDICT=${N_PREDICT:-64} RUNS=${RUNS:-2} N_MANY=${N_MANY:-1}
    NGL=${NGL:--1} N_SEQS=${N_SEQS:-1,2,4,8,16,32} TESTS=${TESTS:-gpu}
    PAIRS=${PAIRS:-Llama-3.1-8B:Q4_K_M Llama-3.1-8B:Q8_0 Llama-3.1-8B:F16 Qwen3.5-4B:Q4_K_M}
    case $python in */*) PATH=$(dirname "$python"):$PATH ;; esac
    [ ! -d "$work/venv" ] || PATH=$work/venv/bin:$PATH
    LLAMA_CPP_TOOLS=${LLAMA_CPP_TOOLS:-$work/llama/bin}
    # measured costs belong to this run
    LLAMA_CPP_EAGLE3_CACHE=$work/cache
    # llama_cpp looks for mtmd by a variable of its own
    [ ! -d "$work/llama/bin" ] || LLAMA_CPP_LIB_PATH=$work/llama/bin MTMD_CPP_LIB=$work/llama/bin
    export LLAMA_CPP_TOOLS LLAMA_CPP_EAGLE3_CACHE ${LLAMA_CPP_LIB_PATH:+LLAMA_CPP_LIB_PATH MTMD_CPP_LIB}
    mkdir -p "$work" "$out"
}

everything() {
    install
    files &
    build
    LLAMA_CPP_LIB_PATH=$work/llama/bin MTMD_CPP_LIB=$work/llama/bin
    export LLAMA_CPP_LIB_PATH MTMD_CPP_LIB
    python -c 'import llama_cpp; print(llama_cpp.llama_print_system_info().decode())'
    wait $! || exit 1
    tests
    one
    profile
    heads
    many
    echo "== done, figures in $out, $(left) of $BUDGET seconds left"
}

case ${1:-all} in
    prepare) prepare ;;
    all)
        CMAKE_ARGS="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCH:-90}"
        defaults
        everything
        ;;
    vulkan)
        CMAKE_ARGS="-DGGML_VULKAN=ON ${VULKAN_ARGS:-}"
        defaults
        everything
        ;;
    dry)
        PAIRS=${PAIRS:-tiny:Q4_K_M tiny-qwen35:Q8_0} NGL=0 N_PREDICT=${N_PREDICT:-16} RUNS=1 N_SEQS=${N_SEQS:-1,4}
        TESTS=${TESTS:-rpc}
        if [ -n "${LLAMA_CPP_TOOLS:-}" ]; then
            defaults
            files
            for part in tests one profile heads many; do $part; done
        else
            defaults
            everything
        fi
        ;;
    build | files | tests | one | profile | heads | many)
        defaults
        for part in "$@"; do $part; done
        ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
esac
