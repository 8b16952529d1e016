# The commands that people and CI run. Each brings what it needs to a Debian or Ubuntu machine that
# has Python 3.11 or newer; what only root can bring is named when it is missing.

VENV ?= .venv
PYTHON ?=
ARGS ?=

# The extras of pyproject.toml that the environment has, and the programs beside it that tests use.
EXTRAS := dev,server,postgres,mariadb,sql,model,spark-connect
COMPONENTS := omniidl mkfs.ext4 losetup java

# The name of the stamp has a checksum of all that decides what the environment holds. The folder is
# part of it because an environment that was moved or copied still points to where it was built.
CHECKSUM := $(shell { cat pyproject.toml tests/setup/venv.sh; \
	echo '$(CURDIR) $(PYTHON) $(EXTRAS)'; } | cksum | cut -d ' ' -f 1)
READY := $(VENV)/.ready-$(CHECKSUM)
RUN := $(VENV)/bin/python -m

# Some images tell Python to keep no compiled modules. Then each of the hundreds of processes that the
# tests start would compile everything anew, which takes longer than what most of them do.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help test check demo bench profile model java components clean

help: ## List the targets (this is the default).
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'ARGS="…" goes to the program that is run:   make test ARGS="-k log -x"'
	@echo 'PYTHON=… names the interpreter, VENV=… the environment (default .venv).'

# More workers than processors: one drives Spark, and many tests wait for disks and processes.
test: $(READY) components ## Run the tests.
	$(RUN) pytest -n 3 $(ARGS)

check: $(READY) ## Check style, formatting and types.
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy

demo: $(READY) ## Show the promise in two minutes.
	@JAVA_HOME=$$(tests/setup/java.sh '$(VENV)' || true) && export JAVA_HOME && \
		$(RUN) clients.demo $(ARGS)

bench: $(READY) ## Compare with other queues, or run the benchmarks that ARGS names; FULL=1 takes longer.
	@JAVA_HOME=$$(tests/setup/java.sh '$(VENV)' || true) && export JAVA_HOME && \
		benchmarks/peers/setup.sh '$(VENV)' && $(RUN) benchmarks $(if $(FULL),--full) $(ARGS)

profile: $(READY) ## Show where the time of one transaction goes: ARGS="--work put|transaction|move|two".
	$(RUN) benchmarks.profiling $(ARGS)

model: $(READY) ## Check the models of two-phase commit, and that their planted bugs are found.
	@JAVA_HOME=$$(tests/setup/java.sh '$(VENV)') && export JAVA_HOME && \
		$(VENV)/bin/python docs/model/check.py $(ARGS)

java: $(READY) ## Find a Java for Spark, or bring one, and print its JAVA_HOME.
	@tests/setup/java.sh '$(VENV)'

components: ## Install the programs that some tests need (root), or say which are missing.
	@tests/setup/components.sh $(COMPONENTS)

clean: ## Remove the environment and everything the tools left behind.
	@if [ -e '$(VENV)/pyvenv.cfg' ]; then rm -rf '$(VENV)'; fi
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './.*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY):
	@PYTHON='$(PYTHON)' tests/setup/venv.sh '$(VENV)' '$@' '$(EXTRAS)'
