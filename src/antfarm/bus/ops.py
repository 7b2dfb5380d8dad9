"""The ops log: durable, counted operator events in a bounded stream. The oldest make room for the newest."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Self

import nats.errors
from nats.js.api import (
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from antfarm.bus.client import Bus, bus_error
from antfarm.bus.subjects import OPS
from antfarm.config import REQUEST_S
from antfarm.messages import OpsEvent

STREAM = "ANTFARM_OPS"
MAX_MESSAGES = 10_000
MAX_BYTES = 16 << 20


class OpsLog:
    """The ops log of one bus; made with `OpsLog.open`. Every call raises BusError, `bus-full` among them."""

    def __init__(self, bus: Bus, stream: Any) -> None:
        self._bus = bus
        self._stream = stream  # JetStream's context

    @classmethod
    async def open(cls, bus: Bus) -> Self:
        """Bind to the stream, making it when it is not there."""
        config = StreamConfig(
            name=STREAM,
            subjects=[OPS.pattern],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            storage=StorageType.FILE,
            max_msgs=MAX_MESSAGES,
            max_bytes=MAX_BYTES,
        )
        stream = bus.jetstream()
        try:
            await stream.add_stream(config)
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, bus.url) from error
        return cls(bus, stream)

    async def append(self, event: OpsEvent) -> None:
        """Return once the event is stored."""
        try:
            await self._stream.publish(OPS.of(event.kind).name, OPS.encode(event), stream=STREAM)
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self._bus.url) from error

    async def counts(self) -> dict[str, int]:
        """How many events of each kind the log holds."""
        try:
            info = await self._stream.stream_info(STREAM, subjects_filter=OPS.pattern)
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self._bus.url) from error
        return {
            subject.rsplit(".", 1)[1]: count for subject, count in sorted((info.state.subjects or {}).items())
        }

    async def recent(self, n: int) -> list[OpsEvent]:
        """The last `n` events, oldest first."""
        first, last = await self._range(n)
        events: list[OpsEvent] = []
        if last < first:
            return events
        async with aclosing(self._read(first, REQUEST_S)) as read:
            async for sequence, event in read:
                events.append(event)
                if sequence >= last:
                    break
        return events

    async def follow(self, n: int = 0) -> AsyncGenerator[OpsEvent, None]:
        """The last `n` events and then every new one, until the iterator is closed."""
        first, _ = await self._range(n)
        async with aclosing(self._read(first, None)) as read:
            async for _, event in read:
                yield event

    async def _range(self, n: int) -> tuple[int, int]:
        """First and last sequence number of the last `n` events; first > last when there are none."""
        try:
            state = (await self._stream.stream_info(STREAM)).state
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self._bus.url) from error
        last = int(state.last_seq)
        return last + 1 - min(n, int(state.messages)), last

    async def _read(self, first: int, within: float | None) -> AsyncGenerator[tuple[int, OpsEvent], None]:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first)
        try:
            reader = await self._stream.subscribe(
                OPS.pattern, stream=STREAM, ordered_consumer=True, config=config
            )
            try:
                while True:
                    message = await reader.next_msg(timeout=within)
                    yield int(message.metadata.sequence.stream), OPS.decode(message.data)
            finally:
                await reader.unsubscribe()
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self._bus.url) from error
