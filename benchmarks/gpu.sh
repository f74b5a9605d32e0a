#!/bin/sh
# Build, test and measure on a machine with an NVIDIA GPU that reaches no network: Python 3.12, nvcc and a C++ compiler.
#
#   sh benchmarks/gpu.sh prepare     with a network: fill benchmarks/gpu/ with sources and wheels (git ignores it)
#   sh benchmarks/gpu.sh             there, beside that folder: everything in one go, under ten minutes on 16 cores
#
# Environment: PYTHON (python3), CUDA_ARCH (90), GPU_WORK (where to build, default /tmp/eagle3-gpu), OUT (where the figures
# go, default GPU_WORK). The second part has not been run yet: no machine with a GPU was at hand when it was written.
# `sh benchmarks/gpu.sh dry` runs it without CUDA.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
stock=$PWD/benchmarks/gpu
version=$(cat vendor/llama_cpp_python_version)

prepare() {
    rm -rf "$stock"
    mkdir -p "$stock/wheels" "$stock/source"
    $python -m pip download --quiet --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" --dest "$stock/source"
    tar -xzf "$stock/source/llama_cpp_python-$version.tar.gz" -C "$stock/source"
    (
        cd "$stock/source/llama_cpp_python-$version"
        llama=vendor/llama.cpp
        # what CMake reads when neither tools, examples nor tests are built
        XZ_OPT=-9 tar -cJf "$stock/llama_cpp_python.tar.xz" CMakeLists.txt pyproject.toml README.md LICENSE.md llama_cpp \
            $llama/CMakeLists.txt $llama/LICENSE $llama/src $llama/ggml $llama/include $llama/common $llama/cmake $llama/vendor
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

run() {
    work=${GPU_WORK:-/tmp/eagle3-gpu}
    out=${OUT:-$work}
    mkdir -p "$work" "$out"
    $python -m venv --clear "$work/venv"
    PATH=$work/venv/bin:$PATH
    pip install --quiet --no-index --no-deps --no-compile "$stock"/wheels/*.whl
    tar -xJf "$stock/llama_cpp_python.tar.xz" -C "$work"
    ninja --version

    echo "== llama-cpp-python $version"
    CMAKE_ARGS="$1" CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
        pip install --no-index --no-build-isolation --no-deps "$work" 2>&1 | tail -n 5
    echo "== llama-cpp-eagle3"
    pip install --no-index --no-build-isolation --no-deps --config-settings build-dir="$work/build" \
        --config-settings cmake.define.LLAMA_CPP_SOURCE_DIR="$work/vendor/llama.cpp" . 2>&1 | tail -n 5

    python -c 'import llama_cpp; print(llama_cpp.llama_print_system_info().decode())'
    echo "== tests"
    python -m pytest -q --maxfail 5 -m "gpu or not slow" \
        tests/core tests/engine tests/llama tests/planning 2>&1 | tee "$out/tests.txt" | tail -n 40 || true
    echo "== benchmarks"
    for layers in $2; do
        python benchmarks/pair.py -ngl "$layers" --runs 3 --draft-n-max 1 2 3 4 6 8 2>&1 | tee "$out/pair-ngl$layers.md"
        python benchmarks/overhead.py -ngl "$layers" --runs 3 2>&1 | tee "$out/overhead-ngl$layers.md"
    done
    python benchmarks/prefill.py -ngl "$layers" --types F16 --head-type F16 2>&1 | tee "$out/prefill-ngl$layers.md"
}

case ${1:-run} in
    prepare) prepare ;;
    run) run "-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCH:-90} -DLLAVA_BUILD=off" "-1 0" ;;
    dry) run "-DLLAVA_BUILD=off" "0" ;;
    *) sed -n '2,9p' "$0" >&2; exit 2 ;;
esac
