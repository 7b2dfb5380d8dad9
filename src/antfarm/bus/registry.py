"""The Worker Node Registry: a KV bucket of live foragers with their facts, and the queen's lease.

Entries expire on the server, which tells nobody; whoever needs to know that a forager is gone
judges by its own clock when it last heard of it. The bucket is in the server's memory: a full disk ends
no membership, and after a restart everyone's next heartbeat makes it anew.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Self

import msgspec
import nats.errors
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoStreamResponseError, NotFoundError

from antfarm.bus.client import Bus, Subscription, bus_error
from antfarm.bus.subject import Subject
from antfarm.bus.subjects import QUEEN_MODELS
from antfarm.errors import AntfarmError, Reason, StateError
from antfarm.messages import ForagerFacts, ListModels

log = logging.getLogger(__name__)

BUCKET = "antfarm-members"
EXPIRY_S = 10.0  # of an entry that nobody renews
RENEW_S = 3.0  # between renewals of the lease
_MAX_BYTES = 16 << 20
_QUEEN = "queen"


class ForagerGone(msgspec.Struct, frozen=True):
    """A forager took itself out of the registry."""

    id: str


Change = ForagerFacts | ForagerGone


class Registry:
    """The registry of one bus; made with `Registry.open`."""

    def __init__(self, bus: Bus, bucket: Any) -> None:
        self._bus = bus
        self._bucket = bucket
        self._facts: Subject[ForagerFacts] = Subject(BUCKET, ForagerFacts)

    @classmethod
    async def open(cls, bus: Bus) -> Self:
        """Bind to the bucket, making it when it is not there. Raises BusError."""
        try:
            return cls(bus, await _open(bus))
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, bus.url) from error

    async def put(self, facts: ForagerFacts) -> None:
        """A heartbeat. Raises BusError `bus-unreachable` or `bus-full`."""
        await self._write(_key(facts.id), self._facts.encode(facts))

    async def remove(self, forager: str) -> None:
        """Say goodbye."""
        try:
            await self._bucket.delete(_key(forager))
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self._bus.url) from error

    async def snapshot(self) -> list[ForagerFacts]:
        """Every forager whose entry has not expired, by id.

        Asks for each by itself: a consumer passes over an entry that is written anew before it comes to it,
        and stays on the server for minutes.
        """
        try:
            known = await self._bus.jetstream().stream_info(f"KV_{BUCKET}", subjects_filter=_subject("*"))
            found = await asyncio.gather(*map(self._read, known.state.subjects or ()))
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self._bus.url) from error
        return sorted((facts for facts in found if facts), key=lambda facts: facts.id)

    async def watch(self) -> Subscription[Change]:
        """Changes from now on; take a `snapshot` after this to miss nothing.

        Follows the bucket's subject itself rather than a consumer: a plain subscription outlives
        a restart of the server and costs it nothing.
        """
        return await self._bus.listen(_subject("*"), self._change)

    def _change(self, message: Any) -> Change:
        if message.headers and message.headers.get("KV-Operation"):
            return ForagerGone(_forager(message.subject))
        return self._facts.decode(message.data)

    async def _read(self, subject: str) -> ForagerFacts | None:
        """An entry, unless it has gone meanwhile or says nothing."""
        try:
            return self._facts.decode((await self._bucket.get(_key(_forager(subject)))).value)
        except NotFoundError:
            return None
        except AntfarmError as error:
            log.warning("ignored a registry entry: %s", error)
            return None

    async def _write(self, key: str, data: bytes) -> None:
        try:
            await self._bucket.put(key, data)
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self._bus.url) from error

    # ---- the queen's lease

    async def acquire(self, holder: str) -> Lease:
        """The right to be this bus's queen; `holder` says who, for the one that comes second, and no two
        queens say the same.

        A lease whose holder no longer answers on the bus (it crashed) is taken over at once.
        Raises StateError `colony-exists` while another queen lives; BusError.
        """
        try:
            return Lease(self._bus, self._bucket, holder, await self._acquire(holder))
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self._bus.url) from error

    async def _acquire(self, holder: str) -> int:
        """The revision of the lease, which is ours now."""
        try:
            return int(await self._bucket.create(_QUEEN, holder.encode()))
        except KeyWrongLastSequenceError:
            return await self._take_over(holder)

    async def _take_over(self, holder: str) -> int:
        try:
            entry = await self._bucket.get(_QUEEN)
        except KeyNotFoundError:  # it ended between the two calls
            return await self._acquire(holder)
        if await self._queen_answers():
            raise StateError(
                Reason.COLONY_EXISTS,
                f"{entry.value.decode(errors='replace')} is already the queen on the bus at {self._bus.url}",
                hint="one bus has one queen: join it with `antc forager --join`, or stop it with `antc down`",
            )
        try:
            return int(await self._bucket.update(_QUEEN, holder.encode(), last=entry.revision))
        except KeyWrongLastSequenceError:
            raise StateError(
                Reason.COLONY_EXISTS,
                f"another queen has just started on the bus at {self._bus.url}",
                hint="one bus has one queen",
            ) from None

    async def _queen_answers(self) -> bool:
        try:
            await self._bus.request(QUEEN_MODELS, ListModels())
        except AntfarmError as error:
            return error.reason is not Reason.COLONY_DOWN
        return True


class Lease:
    """The right to be the queen, for as long as `keep` runs."""

    def __init__(self, bus: Bus, bucket: Any, holder: str, revision: int) -> None:
        self._bus = bus
        self._bucket = bucket
        self._holder = holder.encode()
        self._revision = revision

    async def keep(self) -> None:
        """Renew until cancelled. Raises StateError `colony-exists` when another queen has taken over."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self._renew()
            except KeyWrongLastSequenceError:
                raise StateError(
                    Reason.COLONY_EXISTS,
                    "another queen took this colony's lease",
                    hint="one bus has one queen",
                ) from None
            except (nats.errors.Error, OSError) as error:
                log.warning("the queen's lease is not renewed: %s", str(error) or type(error).__name__)

    async def _renew(self) -> None:
        """Raises KeyWrongLastSequenceError when the lease is another's."""
        try:
            self._revision = await self._bucket.update(_QUEEN, self._holder, last=self._revision)
        except KeyWrongLastSequenceError:
            self._revision = await self._reclaim()
        except NoStreamResponseError:  # a server that was restarted has no bucket until someone makes it
            self._bucket = await _open(self._bus)
            self._revision = await self._reclaim()

    async def _reclaim(self) -> int:
        """The lease is not at the revision that we know: it expired, or the server carried out a write
        whose answer we did not wait for, or another queen has it."""
        try:
            entry = await self._bucket.get(_QUEEN)
        except KeyNotFoundError:
            return int(await self._bucket.create(_QUEEN, self._holder))
        if entry.value != self._holder:
            raise KeyWrongLastSequenceError
        return int(await self._bucket.update(_QUEEN, self._holder, last=entry.revision))

    async def release(self) -> None:
        """Give the lease back so that another queen starts at once."""
        try:
            await self._bucket.delete(_QUEEN, last=self._revision)
        except (nats.errors.Error, OSError) as error:
            log.debug("the lease is left to expire: %s", error)


async def _open(bus: Bus) -> Any:
    """The bucket, made when it is not there. Raises NATS's errors."""
    config = KeyValueConfig(
        bucket=BUCKET, history=1, ttl=EXPIRY_S, max_bytes=_MAX_BYTES, storage=StorageType.MEMORY
    )
    return await bus.jetstream().create_key_value(config)


def _key(forager: str) -> str:
    return f"forager.{forager}"


def _subject(forager: str) -> str:
    return f"$KV.{BUCKET}.{_key(forager)}"


def _forager(subject: str) -> str:
    return subject.rsplit(".", 1)[1]
