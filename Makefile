# Every target sets up what it needs on a fresh machine with Python 3.10+ and make. See `make help`.
#   PYTHON=...         the Python to use (default: the one of last time, else python3 if it is 3.10 or newer, else python3.13 to python3.10)
#   TORCH=none|cuda    go on without torch, or load the CUDA build (several GB); default: one that is there, else the CPU build
#   TORCH_INDEX=URL    take torch from this package index
#                      (all three are remembered; `make clean` forgets them)
#   STRICT=1           make test: what can't be run here (GPU aside) is a failure, not an omission
#   CHECKED=1          make test: after `make check`, which ran the tests of the architecture

# tests start thousands of commands: each would compile all it imports
unexport PYTHONDONTWRITEBYTECODE

RUN = .venv/bin/python -m
TESTS = $(RUN) pytest $(if $(STRICT),--no-omissions) $(if $(CHECKED),--ignore=tests/test_architecture.py)

.PHONY: help setup demo test check format soak bench bundle dashboards clean

help:
	@echo "make setup   the virtual environment in .venv; the other targets call it"
	@echo "make demo    set up, then measure and judge this machine as 2 nodes x 4 workers"
	@echo "make test    set up, then run the tests that this machine can run, and list the rest"
	@echo "make check   format, lint, types, architecture"
	@echo "make soak    the full counts: many injections, twenty demos"
	@echo "make bench   measurements of speed, as ratios"
	@echo "make dashboards  write Grafana's JSON from its description"
	@echo "make bundle  an archive that installs on a node without network"

setup:
	@sh deploy/make/setup.sh

demo: setup
	@.venv/bin/preflight run deploy/plans/demo.toml --local 2x4 --out preflight-run

test: setup
	@$(TESTS) -n 3 --dist loadfile --no-loadscope-reorder

check: setup
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .
	@$(RUN) mypy
	@$(RUN) pytest -q tests/test_architecture.py

format: setup
	@$(RUN) ruff format .
	@$(RUN) ruff check --fix .

soak: setup
	@$(TESTS) -m soak

bench: setup
	@$(TESTS) -m bench -s

bundle: setup
	@.venv/bin/python deploy/bundle/build.py

dashboards: setup
	@$(RUN) deploy.grafana.build

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis preflight-run
