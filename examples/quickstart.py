"""Start a colony of two foragers on this machine, split a model over both, and ask it.

    python examples/quickstart.py [MODEL]

The first run fetches the model, which is `smollm2` unless another is named.
"""

import sys

from antfarm import Colony
from antfarm.messages import ModelStatus


def show(status: ModelStatus) -> None:
    loaded = ", ".join(f"shard {s.shard} on {s.forager} {s.loaded:.0%}" for s in status.shards)
    print(f"{status.model} is {status.state}: {loaded}", file=sys.stderr)


def main() -> None:
    model_name = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    with Colony(foragers=2) as colony:
        model = colony.load(model_name, split=2, progress=show)
        answer = model.ask("Why is the sky blue?", max_tokens=64, temperature=0)
        print(answer)
        print(f"{answer.completion_tokens} tokens, {answer.tokens_per_second} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    main()
