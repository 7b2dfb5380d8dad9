"""The OpenAPI page as it is true: what FastAPI assumes of every route and ours do otherwise is taken out."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

_ASSUMED = ("HTTPValidationError", "ValidationError")


def correct(app: FastAPI) -> None:
    """Wrong bodies are answered as every other failure is, with 400, and never with 422."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        page = generate()
        for path in page["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in _ASSUMED:
            page["components"]["schemas"].pop(name, None)
        return page

    app.openapi = openapi  # type: ignore[method-assign]
