# Everything a newcomer needs: `make up` serves a real model, `make test` checks everything.

PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    := .venv
BIN     := $(VENV)/bin
UV_VERSION := 0.13.9
# On a machine with an NVIDIA driver the same commands use vLLM's GPU build.
HARDWARE := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
# uv does not read pip's settings; a machine that keeps wheels of its own says so to pip.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

# Bytecode now and not at every import: it halves the start of an engine where the environment
# forbids Python to write it.
# urllib3-future replaces urllib3, on which others rely, unless it is built so (decision 0021).
export URLLIB3_NO_OVERRIDE := 1
INSTALL := $(BIN)/uv pip install --quiet --no-deps --compile-bytecode --no-binary urllib3-future

PACKAGES := cluster rl_search autoscaler serving dashboards cli
PLAN := plans/local.json
# On CPUs a second replica and a lighter model share the cores; GPUs are filled as they are.
SIZE_cpu := --max-replicas 2 --light smollm2-135m-instruct-int8
SIZE_gpu := --max-dp 1

resolve = $(BIN)/uv pip compile --quiet pyproject.toml --extra serve --extra rl --extra grafana --extra $(1) --extra dev \
    --override requirements/$(1).overrides --python-version 3.11 \
    --python-platform x86_64-manylinux_2_28 --no-emit-find-links --no-header --no-annotate \
    -o requirements/$(1).lock

# Live tests have no such examples.
EXPLORED := $(filter-out tests/live/ tests/ray_backend/,$(sort $(dir $(wildcard tests/*/test_*.py))))

.PHONY: up down status test explore lint fmt bench lock clean

up: $(BIN)/.installed  ## Install, plan for this machine, serve the bundled model, ask it a question
	$(BIN)/shardwise setup
	$(BIN)/shardwise plan --model smollm2-135m-instruct --cluster local \
	    --isl 256 --osl 128 --ttft 10s --tpot 500ms --max-model-len 2048 \
	    $(SIZE_$(HARDWARE)) --out $(PLAN)
	$(BIN)/shardwise up $(PLAN)
	$(BIN)/shardwise chat "What is the capital of France?"

down: $(BIN)/.installed  ## Stop the service
	$(BIN)/shardwise down

status: $(BIN)/.installed  ## Show the service
	$(BIN)/shardwise status

test: lint  ## Install what is needed, lint, and run all tests
	$(BIN)/shardwise setup
	$(BIN)/python -m tests.tooling
	$(BIN)/python -m compileall -q $(PACKAGES) tests  # hundreds of processes start from here
	$(BIN)/python -m pytest -n 2  # who runs what: tests/turns.py

explore: $(BIN)/.installed  ## Run property tests on examples that no run has had
	$(BIN)/python -m pytest -n 2 --hypothesis-profile explore $(EXPLORED)

lint: $(BIN)/.installed  ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(BIN)/.installed  ## Format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BIN)/.installed  ## Run every benchmark briefly
	for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file --quick || exit 1; done

lock: $(BIN)/uv  ## Resolve the dependencies anew
	$(call resolve,cpu)
	UV_FIND_LINKS= $(call resolve,gpu)  # a CPU wheel kept on this machine is not for GPUs

clean:  ## Remove the environment
	rm -rf $(VENV)

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)

$(BIN)/.installed: requirements/$(HARDWARE).lock pyproject.toml | $(BIN)/uv
	@echo "installing the $(HARDWARE) set-up"
	$(INSTALL) -r requirements/$(HARDWARE).lock \
	    || $(INSTALL) --torch-backend auto -r requirements/$(HARDWARE).lock
	$(INSTALL) -e .
	touch $@
