# `make` lists the targets. Python 3.11 or later and its venv module are all that is needed; the rest goes into .venv.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
OUT    ?= out
PYTEST ?= $(BIN)/pytest

export PIP_DISABLE_PIP_VERSION_CHECK = 1

# One BLAS thread: what is measured and trained does not depend on the machine's cores.
export OPENBLAS_NUM_THREADS ?= 1

# Without compiled modules, each worker of the tests, and each process that they start, would compile all of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check bench bench-full samples schema docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.run ## convert the digit model, run it on every backend, compare, count right answers
	$(BIN)/python sample_models/demo.py --out $(OUT)

test: $(VENV)/.dev ## the whole test suite
	$(PYTEST) -n auto --dist worksteal

check: $(VENV)/.dev ## lint, formatting, types and the fast tests (all but the slow ones and onnx's node cases)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -n auto --dist worksteal -m "not slow" -x --hypothesis-profile quick --ignore-glob 'tests/executor/kernels/test_node_cases*.py'

bench: $(VENV)/.dev ## conversions, big models, runs and first answers against onnxruntime, in a few minutes; MODELS=... measures others
	$(BIN)/python tests/bench/convert.py --runs 5 $(MODELS)
	$(BIN)/python tests/bench/big.py
	$(BIN)/python tests/bench/run.py $(MODELS)
	$(BIN)/python tests/bench/run.py --float16 $(MODELS)
	$(BIN)/python tests/bench/first.py --runs 7 $(MODELS)

bench-full: $(VENV)/.dev ## the same at length: more runs, a million nodes, 1.9 GB of weights, batches
	$(BIN)/python tests/bench/convert.py --runs 15 $(MODELS)
	$(BIN)/python tests/bench/big.py --full
	$(BIN)/python tests/bench/run.py --runs 200 $(MODELS)
	$(BIN)/python tests/bench/run.py --runs 200 --float16 $(MODELS)
	$(BIN)/python tests/bench/first.py --runs 21 $(MODELS)
	$(BIN)/python tests/bench/latency.py $(MODELS)
	$(BIN)/python tests/bench/decoders.py
	$(BIN)/python tests/bench/encoders.py
	$(BIN)/python tests/bench/batch.py troubles
	$(BIN)/python tests/bench/batch.py kills

samples: $(VENV)/.dev ## rebuild every sample model, training included
	$(BIN)/python sample_models/make.py

schema: $(VENV)/.dev ## rewrite ortconv/ir/operators.txt from the installed onnx and onnxruntime
	$(BIN)/python schemas/operators.py

docs: $(VENV)/.dev ## rewrite the generated pages of docs/, and its pictures
	$(BIN)/python docs/generate.py

clean: ## remove .venv, out/ and caches
	rm -rf $(VENV) $(OUT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A virtual environment without pip is a Debian without python3-venv: say what to install, leave nothing half made.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than 3.11; try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "Python's venv module is missing; install it with:"; echo "  sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/pip
	@echo "installing ortconv and what it runs on into $(VENV), which takes a minute ..."
	$(BIN)/pip install --quiet -e .
	@$(BIN)/python -m compileall -q ortconv
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/pip
	@echo "installing ortconv and what its tests need into $(VENV), which takes a minute ..."
	$(BIN)/pip install --quiet -e '.[dev]'
	@$(BIN)/python -m compileall -q ortconv
	@touch $@ $(VENV)/.run
