"""The options that no shard could run with, refused before anything is planned."""

from __future__ import annotations

from antfarm.errors import PlanError, Reason
from antfarm.split.memory import KV_BYTES
from antfarm.types import ModelFacts, RunOptions

# Far beyond what any host holds; what they keep out is sizes that no number of bytes can express.
MAX_CONTEXT = 1 << 24
MAX_SLOTS = 1 << 12
MAX_QUEUE = 1 << 20


def check(facts: ModelFacts, options: RunOptions) -> None:
    """Raises PlanError `bad-setting`, naming the option and what it may be."""
    block = KV_BYTES.get(options.kv_type, (0, 0))[1]
    fits = [kind for kind, (_, values) in KV_BYTES.items() if facts.head_dim % values == 0]
    wanted = {
        "context": (
            options.context == 0 or 2 <= options.context <= MAX_CONTEXT,
            f"0 (the model's own), or 2, a token and its answer, to {MAX_CONTEXT}",
        ),
        "slots": (0 <= options.slots <= MAX_SLOTS, f"0 (as many as fit), or 1 to {MAX_SLOTS}"),
        "chunk": (1 <= options.chunk <= MAX_CONTEXT, f"1 to {MAX_CONTEXT}"),
        "queue": (0 <= options.queue <= MAX_QUEUE, f"0 to {MAX_QUEUE}"),
        "prefill_share": (
            0 < options.prefill_share < 1,
            "a number above 0 and below 1: both go on, prompts and answers",
        ),
        "kv_type": (block and facts.head_dim % block == 0, f"one of {', '.join(fits)} for this model"),
    }
    for name, (fine, meaning) in wanted.items():
        if not fine:
            raise PlanError(
                Reason.BAD_SETTING,
                f"{name} is {getattr(options, name)}, which no shard can run with",
                hint=f"take {meaning}",
                option=name,
            )
