"""ANTFARM: one language model, served by several ordinary hosts together."""

__version__ = "0.1.0"
