"""Model facts without a file: what the header of a Llama-shaped GGUF would say."""

from antfarm.types import ModelFacts, TensorFact

BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q4_k": (256, 144),
}


def tensor(name: str, kind: str, *shape: int) -> TensorFact:
    block, size = BLOCKS[kind]
    values = 1
    for side in shape:
        values *= side
    return TensorFact(name, kind, shape, values // block * size, block)


def llama(
    *,
    layers: int,
    embedding: int,
    feed_forward: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocabulary: int,
    kind: str = "q4_0",
    head_kind: str = "",
    context: int = 8192,
    tied: bool = False,
) -> ModelFacts:
    q, kv = heads * head_dim, kv_heads * head_dim
    tensors = [tensor("token_embd.weight", head_kind or kind, embedding, vocabulary)]
    for i in range(layers):
        layer = {
            "attn_norm": ("f32", embedding),
            "attn_q": (kind, embedding, q),
            "attn_k": (kind, embedding, kv),
            "attn_v": (kind, embedding, kv),
            "attn_output": (kind, q, embedding),
            "ffn_norm": ("f32", embedding),
            "ffn_gate": (kind, embedding, feed_forward),
            "ffn_up": (kind, embedding, feed_forward),
            "ffn_down": (kind, feed_forward, embedding),
        }
        tensors += [tensor(f"blk.{i}.{name}.weight", kind, *shape) for name, (kind, *shape) in layer.items()]
    tensors.append(tensor("output_norm.weight", "f32", embedding))
    if not tied:
        tensors.append(tensor("output.weight", head_kind or kind, embedding, vocabulary))
    return ModelFacts(
        name="test model",
        architecture="llama",
        layers=layers,
        embedding=embedding,
        feed_forward=feed_forward,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        context=context,
        bytes=sum(each.bytes for each in tensors),
        fingerprint="f" * 64,
        tensors=tuple(tensors),
    )


SMOLLM2 = llama(
    layers=30, embedding=576, feed_forward=1536, heads=9, kv_heads=3, head_dim=64, vocabulary=49152,
    kind="q4_1", head_kind="q8_0", tied=True,
)  # fmt: skip
LLAMA_1B = llama(
    layers=16, embedding=2048, feed_forward=8192, heads=32, kv_heads=8, head_dim=64, vocabulary=32000,
    context=4096,
)  # fmt: skip
