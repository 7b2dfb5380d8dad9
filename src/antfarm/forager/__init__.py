"""The daemon on each worker host: it registers the host, fetches models, and supervises shard processes."""

from antfarm.forager.daemon import Forager
from antfarm.forager.settings import ForagerSettings

__all__ = ["Forager", "ForagerSettings"]
