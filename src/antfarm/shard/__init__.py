"""The process that owns ggml: one shard of a model, and, on shard 0, the lead that answers tasks."""
