# `make help` lists what can be done here.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
LANES ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo run test test-engines soak lint bench

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## build .venv with the project, a CPU vLLM and the embedded model (again: a few seconds)
	@$(PYTHON) -m tools.setup

demo: setup ## a program of agents on a real model: tools, a budget, a race, a cancelled branch
	@$(BIN)/nnrp-sched demo $(ARGS)

run: setup ## start vLLM with the embedded model, patched, with NNRP and HTTP (ARGS="…" adds flags)
	@$(BIN)/nnrp-sched run --patch-vllm $(ARGS)

# Engine tests go to workers file by file: first those that start engines of their own, with none of
# ours in the process, then those that share two, a pair for each worker. A selection may leave parts
# empty. ENGINES_AFTER is a process that has to end before the first of them starts.
test: setup ## run every test, the ones on the real engine included (ARGS="-k word" selects)
	@$(call pytest,-n 2 --ignore=tests/engine)
	@$(if $(ENGINES_AFTER),tail --pid=$(ENGINES_AFTER) -f /dev/null)
	@$(call pytest,-n 2 --dist loadfile tests/engine -m own_engine)
	@$(call pytest,-n 2 --dist loadfile tests/engine -m "not own_engine")

NARROWED := $(ARGS)$(filter absent,$(NNRP_SCHED_ENGINE))
pytest = $(BIN)/python -m pytest $(1) $(ARGS) || { [ $$? -eq 5 ] && [ -n "$(NARROWED)" ]; }

# Without ARGS the run is recorded in docs/.
test-engines: setup ## run the engine tests on every vLLM lane (15 GB, once; LANES and ARGS select)
	@$(BIN)/python -m tools.lanes test $(LANES) -- $(ARGS)

soak: setup ## a thousand random programs, then ten minutes of hostile traffic (ARGS="--minutes 60")
	@$(BIN)/python -m tests.soak.programs
	@$(BIN)/python -m tests.soak $(ARGS)

lint: setup ## formatting, style, types and import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/pyright --warnings

bench: setup ## measure wire and mapper, and on a real engine the patch layer, comparing in one run
	@for script in bench/*.py; do echo "== $$script"; \
		$(BIN)/python -m bench.$$(basename $$script .py) || exit 1; done
