# SPDX-License-Identifier: Apache-2.0
# Names for what CMake presets and tools/ do. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CTEST_PARALLEL_LEVEL ?= $(shell nproc)

.PHONY: help quickstart test build bench lint format ci-full pages interop clean

help:        ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## *(.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

quickstart:  ## from a bare machine to a verdict: packages, build, paired NVFP4/BF16 run, report
	tools/quickstart.sh

test:        ## packages, build, every test that needs no GPU
	tools/install_deps.sh test
	cmake --preset release
	cmake --build --preset release
	ctest --preset release

build:       ## the binary alone: build/release/nibble
	tools/install_deps.sh build
	cmake --preset quickstart
	cmake --build --preset quickstart

bench: build ## quantisers against memcpy, the step of NVFP4 against BF16 and FP32
	build/release/nibble bench --backend cpu

lint:        ## layers, sizes, words, format, clang-tidy on changed files
	tools/install_deps.sh lint
	tools/lint.sh

format:      ## rewrites C++ as clang-format has it
	tools/check_format.sh --fix

ci-full:     ## everything: what .ci/run does, all sanitizers, full tidy, pages, all architectures
	tools/ci_full.sh

pages: build ## the live page and a report in headless Chromium: errors, requests, curves, pointer, zoom, widths
	tools/install_deps.sh pages
	tools/pages/check_pages.py --binary build/release/nibble --out build/pages

interop:     ## a checkpoint against transformers and tokenizers, event files against tensorboard, from PyPI
	tools/interop/run.sh

clean:       ## removes build/ (runs/ stays)
	rm -rf build
