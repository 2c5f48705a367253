# make demo    from nothing to a plan, an audit of two of its stages and a rehearsal of it
# make test    lint, types and every test, as continuous integration runs them
# make neuron  the torch backend on a twin of native PyTorch for Neuron, which needs no chip
# make docs    the site of docs/, into site/
# make benchmark  every recipe, published and as planned, audited: plan against audit
# make calibrate  the packaged constants, fitted anew to benchmarks/data
# make clean   remove the environment and what was built
#
# Needs python3 (3.10 to 3.13, with venv) and make. PYTHON=python3.12 chooses the interpreter of a new .venv.

SHELL := /usr/bin/env bash
PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# An interrupted `venv` leaves a python without pip behind: make it anew. The pip of Python 3.11 installs what the tests
# need in 1.4 times the seconds of today's.
CREATE_VENV = $(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear --upgrade-deps $(VENV)
# Other packages are compiled when they are imported, which is less than a third of their files, and kept compiled even
# where the environment says otherwise; ours are compiled at once.
INSTALL = $(VENV)/bin/python -m pip install -qq --no-compile --constraint constraints.txt --editable
COMPILE = $(VENV)/bin/python -m compileall -q autoshard tests
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test docs neuron benchmark calibrate lint types clean

help:
	@sed -n 's/^# make/make/p' Makefile

demo: $(VENV)/.demo
	autoshard plan --model llama3-70b --nodes 16
	autoshard audit plan.json --stages 0,7
	autoshard run plan.json

# Types are checked beside the first tests. Many tests wait for processes at times, which a third one at a time fills on
# two cores. Those of several processes add schedules of their own, which the others must not see. To look into what
# asserts compare takes long: only tests that failed are run again with it. No test looks at what is logged.
PYTEST = python -m pytest -n 3 --dist loadfile --assert=plain -p no:logging
AGAIN = { python -m pytest --last-failed --last-failed-no-failures none; false; }
test: lint
	mypy & types=$$!; \
	$(PYTEST) --no-loadscope-reorder tests/validation tests/golden tests/unit || $(AGAIN) \
	&& wait $$types
	$(PYTEST) tests/multiprocess || $(AGAIN)

docs: $(VENV)/.test
	python -m mkdocs build --strict

neuron: $(VENV)/.test
	python -m pytest tests/neuron

lint: $(VENV)/.test
	ruff check
	ruff format --check

types: $(VENV)/.test
	mypy

# Newer than pyproject.toml and constraints.txt when what they ask for is installed.
$(VENV)/.demo: pyproject.toml constraints.txt
	@echo "installing autoshard[torch,wandb,plot] into $(VENV)"
	@$(CREATE_VENV)
	@$(INSTALL) '.[torch,wandb,plot]'
	@$(COMPILE)
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	@echo "installing autoshard[torch,wandb,plot,dev] into $(VENV)"
	@$(CREATE_VENV)
	@$(INSTALL) '.[torch,data,wandb,plot,dev]'
	@$(COMPILE)
	@touch $(VENV)/.demo $@

benchmark: $(VENV)/.test
	python -m benchmarks.audit_plans

calibrate: $(VENV)/.test
	autoshard calibrate --results benchmarks/data/measured_{gpu,trainium}.csv \
	  --collectives benchmarks/data/trainium_collectives.csv -o autoshard --details benchmarks/data

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
