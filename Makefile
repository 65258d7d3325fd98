# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
#
# make demo | test | lint | clean, each of which sets up $(VENV) first where it has to.
# PYTHON       interpreter that makes the environment, Python 3.10 to 3.13
# TORCH_INDEX  a package index to take torch alone from; empty = your own pip configuration, unchanged
# VENV, JOBS   folder of the environment; test processes

PYTHON ?= python3
TORCH_INDEX ?=
VENV ?= .venv
JOBS ?= 2

STAMP := $(VENV)/.stamp
VPY := $(VENV)/bin/python
PIP := $(VPY) -m pip --disable-pip-version-check
# `user = true` in a pip configuration cannot work inside an environment.
export PIP_USER := 0

# Runs under any Python, old ones too, so that the message is ours and not a SyntaxError.
define CHECK_PYTHON
import sys
have = "%d.%d" % sys.version_info[:2]
if not (3, 10) <= sys.version_info[:2] < (3, 14):
    sys.exit("%s=%s must be Python 3.10 to 3.13 (it is %s); name another one: make PYTHON=python3.12 ..." % (sys.argv[1], sys.argv[2], have))
try:
    import ensurepip, venv
except ImportError as error:
    sys.exit("%s=%s must be able to make virtual environments (%s); install that part (Debian, Ubuntu: apt install python%s-venv)" % (sys.argv[1], sys.argv[2], error, have))
endef
export CHECK_PYTHON

.PHONY: demo test lint check setup clean same-python

demo: $(STAMP)
	$(VPY) benchmark/bench_gemm_ar.py --local-world 2 --m 512 --n 512 --k 256 --calls 2

test: $(STAMP)
	$(VPY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: $(STAMP)
	$(VPY) -m ruff check .
	$(VPY) -m mypy

check: $(STAMP)
	$(VPY) -m mori_gemm_ar audit
	$(VPY) -m mori_gemm_ar model check
	$(VPY) -m mori_gemm_ar prove

setup: $(STAMP)

# Who names a PYTHON expects that very one, not the Python of an older environment.
ifeq ($(origin PYTHON),command line)
same-python:
	@[ ! -x $(VPY) ] || [ "$$($(PYTHON) -c 'import sys; print(sys.version_info[:2])')" = "$$($(VPY) -c 'import sys; print(sys.version_info[:2])')" ] || \
	    { echo "PYTHON=$(PYTHON) must be the Python of $(VENV); run 'make clean' first, or name another folder: VENV=.venv-other" >&2; exit 1; }
$(STAMP): | same-python
endif

$(STAMP): pyproject.toml setup.py constraints-dev.txt
	@if ! $(VPY) -m pip --version >/dev/null 2>&1; then \
	    command -v $(PYTHON) >/dev/null || { echo "PYTHON=$(PYTHON) must be an installed Python 3.10 to 3.13; name one: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	    [ ! -e $(VENV) ] || [ -f $(VENV)/pyvenv.cfg ] || { echo "VENV=$(VENV) must be a virtual environment or a new folder; name another one: make VENV=.venv-other" >&2; exit 1; }; \
	    $(PYTHON) -c "$$CHECK_PYTHON" PYTHON "$(PYTHON)" && $(PYTHON) -m venv --clear $(VENV); \
	fi
	@$(VPY) -c "$$CHECK_PYTHON" VENV "$(VENV)"
ifneq ($(strip $(TORCH_INDEX)),)
	$(PIP) install --no-deps --index-url "$(strip $(TORCH_INDEX))" -c constraints-dev.txt torch
endif
	$(PIP) install -c constraints-dev.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@[ ! -f $(VENV)/pyvenv.cfg ] || rm -rf $(VENV)
