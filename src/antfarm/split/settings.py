"""The options that no shard could run with, refused before anything is planned."""

from __future__ import annotations

from antfarm.errors import PlanError, Reason
from antfarm.split.memory import KV_BYTES
from antfarm.types import ModelFacts, RunOptions


def check(facts: ModelFacts, options: RunOptions) -> None:
    """Raises PlanError `bad-setting`, naming the option and what it may be."""
    block = KV_BYTES.get(options.kv_type, (0, 0))[1]
    fits = [kind for kind, (_, values) in KV_BYTES.items() if facts.head_dim % values == 0]
    wanted = {
        "context": (options.context >= 0, "0 (the model's own) or more"),
        "slots": (options.slots >= 0, "0 (as many as fit) or more"),
        "chunk": (options.chunk >= 1, "at least 1"),
        "queue": (options.queue >= 0, "0 or more"),
        "prefill_share": (0 < options.prefill_share <= 1, "above 0 and at most 1"),
        "kv_type": (block and facts.head_dim % block == 0, f"one of {', '.join(fits)} for this model"),
    }
    for name, (fine, meaning) in wanted.items():
        if not fine:
            raise PlanError(
                Reason.BAD_SETTING, f"{name} is {getattr(options, name)}, but must be {meaning}", option=name
            )
