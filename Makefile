# make demo    train on real digits with Horovod on two ranks, from nothing
# make test    prove it: checks, then every test
# The path of the clone may hold blanks, so every path below is relative.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check


.PHONY: help demo test check format lab soak build-horovod environment nccl-build-check clean

help:
	@sed -n 's/^# //p;/^$$/q' Makefile

# An environment with pinned dependencies and hvdtrain itself; made again when a pin changes.
$(VENV)/.ready: constraints.txt setup.cfg .ci/bootstrap.py
	@$(PYTHON) .ci/bootstrap.py $(VENV)
	@touch $(VENV)/.ready

environment: $(VENV)/.ready

# Takes the wheel from the cache where it is there; a second call finds it installed.
build-horovod: $(VENV)/.ready
	@$(BIN)/hvdtrain build-horovod

# On the CPUs and with two slots, so that it runs on a machine with one core or one GPU too.
demo: build-horovod
	@rm -rf runs/demo
	@CUDA_VISIBLE_DEVICES= $(BIN)/hvdtrain train -np 2 --slots 2 --run-dir runs/demo --set backend=horovod

$(VENV)/.dev: $(VENV)/.ready
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]' --no-build-isolation
	@touch $(VENV)/.dev

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: build-horovod check
	$(BIN)/python -m pytest

# Four hosts and a Slurm on this machine, and the tests on them; needs root, installs Debian packages.
lab: build-horovod $(VENV)/.dev
	@tests/lab/install
	HVDTRAIN_LAB=require $(BIN)/python -m pytest tests/lab

# A run that is killed 500 times at random moments, where CI does it 50 times.
soak: build-horovod $(VENV)/.dev
	HVDTRAIN_SOAK_KILLS=500 $(BIN)/python -m pytest -s tests/e2e/test_soak.py

# An NCCL build against a CUDA build of torch (5.5 GB to install): by hand, where nvcc is.
nccl-build-check: $(VENV)/.dev
	$(BIN)/python tests/build/nccl_build_check.py

clean:
	rm -rf $(VENV) build dist runs/demo *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
