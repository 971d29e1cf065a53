# The door to everything: `make help`. Cargo does the work; nvcc comes from `make toolchain` unless MKERNEL_CUDA_HOME names a toolkit.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
PREFIX ?= /usr/local
RANKS ?= 8

# What `make toolchain` installed goes before a toolkit on PATH, whose release nobody checked.
ifneq ($(wildcard .toolchain/cuda/nvidia/cu13/bin/nvcc),)
export MKERNEL_CUDA_HOME ?= $(CURDIR)/.toolchain/cuda/nvidia/cu13
endif

.DEFAULT_GOAL := help
.PHONY: help toolchain build demo test bench install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

toolchain: ## put nvcc into .toolchain/ and, as root on Debian or Ubuntu, install missing packages
	@packaging/toolchain.sh

build: toolchain ## libmkernel.so, the mkernel program and the emulated GPU, in target/release
	@# In a shell that sees the toolchain that was just installed.
	@$(MAKE) --no-print-directory release

.PHONY: release
release:
	$(CARGO) build --release -p mkernel -p mkernel-emulator -p mkernel-cli -p mkernel-compat
	@packaging/emulator-folder.sh $(RELEASE)

demo: build ## build, then every collective with 8 ranks and all results checked, on a GPU or the emulated one
	$(RELEASE)/mkernel perf all -g $(RANKS) -b 8 -e 1M -f 16 -n 5

bench: build ## latency and bandwidth of every collective, 8 bytes to 128 MB, on the GPUs here
	$(RELEASE)/mkernel perf all -g $(RANKS) -b 8 -e 128M -f 4 -n 50 -w 5

test: ## every test that needs no GPU; ends with "N passed, N failed"
	@.ci/test

install: ## copy what make build made to PREFIX (default /usr/local); packaging/install.sh --uninstall removes it
	@PREFIX=$(PREFIX) packaging/install.sh

clean: ## remove everything that was built; .toolchain stays
	$(CARGO) clean
