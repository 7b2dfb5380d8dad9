"""Use a colony through OpenAI's own client: any program that takes a base URL works the same way.

pip install openai
antc up --model smollm2
python examples/openai_client.py [URL]
"""

import sys

from openai import OpenAI

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7777/v1"


def main() -> None:
    client = OpenAI(base_url=URL, api_key="not asked for")
    names = [model.id for model in client.models.list()]
    print(f"models: {', '.join(names)}")
    stream = client.chat.completions.create(
        model=names[0],
        messages=[{"role": "user", "content": "Write one sentence about ants."}],
        max_tokens=48,
        seed=1,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
