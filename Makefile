# `make` alone lists the targets. Targets that need the environment create it first, in .venv and nowhere else.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install quickstart small-en test test-slow test-gpu journeys browser check lint types format docs bench mutate fuzz audit clean lock

PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --progress-bar off
RUN := runs/quickstart
WORKERS := -n auto --dist loadscope
COUNT := 150
CASES := 10000
SECONDS := 3600
SEED := 0

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

install: .venv/.installed ## Install unicloze and its development tools into .venv

quickstart: .venv/.small-en ## Use the small English model; train a toy world, then a small model of Python's documentation
	$(BIN)/unicloze fill --model unicloze-small-en --text "She opened the [MASK] and looked out of the [MASK]." --order confidence
	$(BIN)/unicloze score --model unicloze-small-en --text "They were tired." --text "They was tired."
	$(BIN)/python examples/atlas.py runs/atlas
	$(BIN)/unicloze prepare --recipe quickstart --out $(RUN)/data
	$(BIN)/unicloze pretrain --recipe quickstart --data.prepared $(RUN)/data --out $(RUN)
	$(BIN)/unicloze report $(RUN)
	$(BIN)/python examples/quickstart.py $(RUN)
	@echo
	@echo "Model, ledger and report: $(RUN)     Prepared text: $(RUN)/data"
	@echo "Try next:"
	@echo "  $(BIN)/unicloze fill --model $(RUN) --text 'The [MASK] of a function is its [MASK] value.'"
	@echo "  $(BIN)/unicloze inspect --recipe quickstart --text 'A list is a mutable sequence.'"
	@echo "  $(BIN)/unicloze pretrain --recipe quickstart --data.corpus YOUR_TEXT --out runs/mine"
	@echo "  $(BIN)/unicloze recipes"

small-en: .venv/.small-en ## Install the small English model of this repository
	@echo "Try:"
	@echo "  $(BIN)/unicloze fill --model unicloze-small-en --text 'She opened the [MASK] and looked out.'"
	@echo "  $(BIN)/unicloze score --model unicloze-small-en --text 'They were tired.'"

test: .venv/.installed ## Test all that is promised
	$(BIN)/python -m pytest $(WORKERS) -m "not slow and not journey"

test-slow: .venv/.installed ## Repeat it with every objective, task and pair of options, and with up to four processes
	$(BIN)/python -m pytest $(WORKERS) -m "slow and not journey"

test-gpu: .venv/.installed ## Run the tests that need a CUDA device; they are skipped without one
	$(BIN)/python -m pytest -m gpu

journeys: .venv/.installed ## Test a new user's first hours, from the quickstart to a fine-tuned model (10 minutes)
	$(BIN)/python -m pytest tests/journeys

browser: .venv/.browser ## Test the page of `serve` in the system's Chromium
	$(BIN)/python -m pytest tests/test_serve_page.py

check: lint types .venv/.installed ## Lint, check types, run the quick tests
	$(BIN)/python -m pytest $(WORKERS) -m "not whole and not slow and not journey"

lint: .venv/.installed ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed ## Check types
	$(BIN)/mypy

format: .venv/.installed ## Fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.docs ## Build the documentation site into build/docs
	$(BIN)/python -m sphinx -E -q -W --keep-going docs build/docs
	@echo "Open build/docs/index.html"

bench: .venv/.installed ## Measure this machine: examples per second, and training steps against Transformers
	$(BIN)/python benchmarks/objectives.py
	$(BIN)/python benchmarks/pretrain_step.py

mutate: .venv/.mutate ## Measure the tests with a sample of single mutations (MODULES="training/loop text/shards" COUNT=150 SEED=0)
	$(BIN)/python benchmarks/mutation/mutate.py --count $(COUNT) --seed $(SEED) $(if $(MODULES),--modules $(MODULES)) \
		$(if $(TESTS),--tests $(TESTS)) $(if $(JOBS),--jobs $(JOBS)) $(if $(BUDGET),--budget $(BUDGET)) \
		$(if $(MARKS),--marks "$(MARKS)")

fuzz: .venv/.installed ## Mutate all input formats, in processes with limits (CASES=10000 SECONDS=3600 FORMATS="recipe lineage" SEED=0)
	$(BIN)/python tests/fuzz.py --cases $(CASES) --seconds $(SECONDS) --seed $(SEED) $(FORMATS)

audit: .venv/.installed ## Look for known vulnerabilities of the pinned packages, and list them all in build/sbom.json
	$(PIP_INSTALL) pip-audit
	$(BIN)/python benchmarks/supply_chain.py sbom
	$(BIN)/python benchmarks/supply_chain.py audit

clean: ## Remove .venv, caches and build outputs; runs/ is kept
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache

lock: ## Pin the newest compatible versions, with hashes in the locks; torch is kept (TORCH=torch==X changes it)
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off \
		"$(or $(TORCH),$(shell grep '^torch==' constraints.txt))" \
		--editable ".[dev,hf,onnx,datasets,metrics,coco,tensorboard,serve,browser,docs,mutate]"
	grep '^#' constraints.txt > build/constraints.txt
	build/lock/bin/python -m pip freeze --exclude-editable | sed 's/+.*//' \
		| grep -Eiv '^(nvidia|cuda|triton)' | LC_ALL=C sort -f >> build/constraints.txt
	mv build/constraints.txt constraints.txt
	build/lock/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off uv
	build/lock/bin/python benchmarks/supply_chain.py lock

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "unicloze needs Python 3.11 or newer, and '$(PYTHON)' is older or missing; use another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "'$(PYTHON)' cannot create a virtual environment; install its venv module" >&2; exit 1; }
	@touch $@

.venv/.runtime: pyproject.toml constraints.txt | .venv/.created
	@echo "Installing unicloze into .venv; torch is large, so this takes a minute or more"
	@$(PIP_INSTALL) --constraint constraints.txt --editable .
	@touch $@

# After the runtime, so that `make -j quickstart test` never runs two installations at once.
.venv/.installed: .venv/.runtime
	@echo "Installing the development tools into .venv"
	@$(PIP_INSTALL) --constraint constraints.txt --editable ".[dev]"
	@touch $@

.venv/.small-en: .venv/.runtime $(wildcard models/unicloze-small-en/*)
	@$(PIP_INSTALL) --no-deps ./models/unicloze-small-en
	@touch $@

.venv/.docs: .venv/.runtime
	@echo "Installing Sphinx into .venv"
	@$(PIP_INSTALL) --constraint constraints.txt --editable ".[docs]"
	@touch $@

.venv/.browser: .venv/.installed
	@echo "Installing the driver of the browser into .venv"
	@$(PIP_INSTALL) --constraint constraints.txt --editable ".[dev,browser]"
	@touch $@

.venv/.mutate: .venv/.installed
	@echo "Installing the mutation tools into .venv"
	@$(PIP_INSTALL) --constraint constraints.txt --editable ".[mutate]"
	@touch $@
