"""The API served by uvicorn on a free port, its answers from a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
from support.scripted import ScriptedQueen, Step

from antfarm.messages import ModelStatus
from antfarm.queen.api import ApiServer, bind, create_app

DEADLINE_S = 30.0


class Api:
    """A served app, and clients for it."""

    def __init__(self, queen: ScriptedQueen, url: str) -> None:
        self.queen = queen
        self.url = url

    def client(self, key: str = "any") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S)

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """`body` is JSON when it is not bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with httpx.AsyncClient(base_url=self.url, timeout=DEADLINE_S) as http:
            return await http.post(
                path, content=content, headers={"Content-Type": "application/json", **headers}
            )

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, timeout=DEADLINE_S) as http:
            return await http.get(path, headers=headers)


@asynccontextmanager
async def served(
    script: Sequence[Step], models: Sequence[ModelStatus] | None = None, api_key: str | None = None
) -> AsyncIterator[Api]:
    queen = ScriptedQueen(script, models)
    server = await ApiServer.start(create_app(queen, api_key=api_key), bind("127.0.0.1", 0))
    try:
        yield Api(queen, server.url)
    finally:
        await asyncio.wait_for(server.stop(), DEADLINE_S)
        assert queen.running == 0, "a task outlived its client"
