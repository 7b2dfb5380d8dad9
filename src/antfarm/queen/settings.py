"""How a queen runs."""

from __future__ import annotations

from dataclasses import dataclass

from antfarm.config import BUS_PORT, Home
from antfarm.secret import Secret


@dataclass(frozen=True)
class QueenSettings:
    """Without `bus_url` the queen runs a nats-server of her own, at `bus_host`:`bus_port` (0: a free one)."""

    home: Home
    secret: Secret
    bus_url: str = ""
    bus_token: str = ""  # of a NATS of your own; empty takes the colony's
    bus_host: str = "127.0.0.1"
    bus_port: int = BUS_PORT

    def token(self) -> str:
        return self.bus_token or self.secret.bus_token()
