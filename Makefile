# The front door for people. CMake does the work, see CMakePresets.json; this file names the things one wants to do.

PREFIX ?= /usr/local
CMAKE_FLAGS ?=
BENCH_FLAGS ?=
CLANG_FORMAT_VERSION := 19.1.7
MAKEFLAGS += --no-print-directory

.PHONY: all help demo test bench python gpu-check cpu-check-x86 asan fmt install clean

all: ## build the library and the command: build/libmla.so, build/mla
	cmake --preset release --log-level=NOTICE $(CMAKE_FLAGS)
	cmake --build --preset release

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: ## install what is missing, build, run the main job and show it
	scripts/bootstrap.sh build
	$(MAKE) all
	build/mla demo

test: ## everything CI runs
	scripts/bootstrap.sh test
	$(MAKE) python CMAKE_FLAGS="$(CMAKE_FLAGS) -DMLA_BUILD_TESTS=ON"
	$(MAKE) build/venv/ready-for-tests build/tools/bin/clang-format
	tests/run_all build --python build/venv/bin/python --python-path build/python

bench: ## production shapes; BENCH_FLAGS="--json ..." for more
	scripts/bootstrap.sh build
	$(MAKE) all
	build/mla bench $(BENCH_FLAGS)

python: ## wheel in build/wheel/, importable tree in build/python/
	scripts/bootstrap.sh python
	$(MAKE) all build/venv/ready-to-build
	build/venv/bin/python python/make_tree.py --library build/libmla.so --wheel build/wheel --tree build/python

gpu-check: ## on a machine with an NVIDIA GPU: build, all GPU tests, GPU bench, summary last; under 9 minutes
	scripts/gpu_check

cpu-check-x86: ## on an x86-64 machine: checkkernel and the bench at every level it offers, JSON into bench/results; see its file
	scripts/cpu_check_x86

asan: ## C tests and kernel checks under the address and undefined behaviour sanitizers
	scripts/bootstrap.sh test
	cmake --preset asan --log-level=NOTICE $(CMAKE_FLAGS)
	cmake --build --preset asan
	tests/run_all build/asan

fmt: build/tools/bin/clang-format ## format the C and CUDA files in place
	git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs $< -i

install: all ## install under PREFIX; DESTDIR is honoured
	cmake --install build --prefix $(PREFIX)

clean: ## remove everything that was built
	rm -rf build

build/venv/ready-to-build: python/requirements-build.txt
	python3 -m venv build/venv
	build/venv/bin/pip install --quiet --requirement $<
	touch $@

# torch and transformers are large, so only tests and the Python example make one wait for them.
build/venv/ready-for-tests: python/requirements-test.txt build/venv/ready-to-build
	build/venv/bin/pip install --quiet --requirement $<
	touch $@

# One pinned version, because every version formats a little differently.
build/tools/bin/clang-format: Makefile
	python3 -m venv build/tools
	build/tools/bin/pip install --quiet clang-format==$(CLANG_FORMAT_VERSION)
	touch $@
