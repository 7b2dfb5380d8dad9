# demo: see it work. test: everything that CI runs. check: the static part. bench: what a split gains here.
V := .venv/bin

.PHONY: setup dev demo check test bench

setup:
	@scripts/setup

dev:
	@scripts/setup dev

demo: setup
	@scripts/demo

check: dev
	$(V)/ruff check .
	$(V)/ruff format --check .
	$(V)/mypy
	$(V)/lint-imports

test: check
	$(V)/pytest tests/unit
	$(V)/pytest tests/integration

bench: setup
	$(V)/antc bench split --out build/bench-split
