"""Log-probabilities from llama.cpp (xllamacpp), to hold ours against."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp
from numpy.typing import NDArray

_WHOLE_TOKEN = 65  # an ASCII letter in the synthetic vocabularies and in SmolLM2's

Step = tuple[int, dict[int, float]]  # the token chosen, and the top tokens' natural-log probabilities


class Reference:
    """A model run by llama.cpp in this process.

    `kv` is "f16" or "f32"; weights are left unpacked so that F32 models compute in plain F32.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        kv: str = "f16",
        flash_attention: bool = True,
        threads: int = 1,
        pooling: str = "",
    ) -> None:
        """With `pooling` ("MEAN", or "UNSPECIFIED": as the file says), it gives embeddings alone."""
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 512
        params.n_parallel = 1
        params.warmup = False
        params.fit_params = False
        params.no_extra_bufts = True
        params.cache_ram_mib = 0
        params.verbosity = 0
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.n_threads_http = 1
        kv_type = xllamacpp.ggml_type[f"GGML_TYPE_{kv.upper()}"]
        params.cache_type_k = params.cache_type_v = kv_type
        state = "ENABLED" if flash_attention else "DISABLED"
        params.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{state}"]
        if pooling:
            params.embedding = True
            params.pooling_type = xllamacpp.llama_pooling_type[f"LLAMA_POOLING_TYPE_{pooling}"]
        self._server = xllamacpp.Server(params)

    def top_logprobs(self, token_ids: list[int], n_decode: int, top: int = 10) -> list[Step]:
        """Greedy: one step per token of the answer, the first from the prompt's last row.

        Each step is a question of its own (the cache keeps what went before): in one answer llama.cpp
        leaves out the probabilities of tokens that end inside a UTF-8 character. For the same reason the
        token it samples is forced to be one whole character; the probabilities are from before that.
        """
        steps: list[Step] = []
        tokens = list(token_ids)
        for _ in range(n_decode):
            best = self._next(tokens, top)
            chosen = max(best, key=best.__getitem__)
            steps.append((chosen, best))
            tokens.append(chosen)
        return steps

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """The text's ids, without BOS."""
        request = {"content": text, "add_special": False, "parse_special": special}
        ids: list[int] = self._post("/tokenize", request)["tokens"]
        return ids

    def render(self, messages: list[dict[str, str]]) -> str:
        """The prompt that llama.cpp's own template engine makes of messages."""
        prompt: str = self._post("/apply-template", {"messages": messages})["prompt"]
        return prompt

    def embeddings(self, texts: list[str]) -> list[NDArray[np.float32]]:
        """Of length 1, with the special tokens that the model adds."""
        answer = self._post("/v1/embeddings", {"input": texts})
        return [np.array(each["embedding"], np.float32) for each in answer["data"]]

    def _post(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        url, body = self._server.listening_address + path, json.dumps(request).encode()
        with urllib.request.urlopen(url, body, timeout=60) as answer:
            decoded: dict[str, Any] = json.load(answer)
        return decoded

    def _next(self, tokens: list[int], top: int) -> dict[int, float]:
        answer = self._ask(
            {
                "prompt": tokens,
                "n_predict": 1,
                "n_probs": top,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_prompt": True,
                "logit_bias": [[_WHOLE_TOKEN, 1000.0]],
            }
        )
        (step,) = answer["choices"][0]["logprobs"]["content"]
        return {each["id"]: each["logprob"] for each in step["top_logprobs"]}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._server.handle_completions(request)
        decoded: dict[str, Any] = json.loads(answer) if isinstance(answer, str | bytes) else answer
        assert "error" not in decoded, decoded
        return decoded


def top_logprobs(
    path: Path | str, token_ids: list[int], n_decode: int, top: int = 10, **settings: Any
) -> list[Step]:
    """`Reference(path, **settings).top_logprobs(...)` for a single question."""
    return Reference(path, **settings).top_logprobs(token_ids, n_decode, top)
