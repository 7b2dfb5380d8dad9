"""The connection to the bus: typed publish, request, serve and subscribe over NATS.

After the first connection the client reconnects for as long as it lives. What goes wrong is raised
as a typed error at the asker, answered as a `Failure` at the server, or logged; nothing is swallowed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakSet

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from antfarm.bus.subject import RequestSubject, Subject
from antfarm.bus.subjects import PREFIX
from antfarm.config import REQUEST_S
from antfarm.errors import AntfarmError, BusError, Reason
from antfarm.messages import Failure

M = TypeVar("M")
R = TypeVar("R")

log = logging.getLogger(__name__)

CONNECT_S = 3.0
RETRY_S = 2.0  # between attempts to reconnect, at most; well below LOST_AFTER_S
RESETS = 8  # while connecting, before a server that resets every connection counts as unreachable
BACKLOG = 65_536  # messages that one subscriber may leave unread

# JetStream's err_code values for: no resources, memory full, storage full, stream full.
_FULL = frozenset({10023, 10028, 10047, 10077})


def bus_error(error: Exception, url: str) -> BusError:
    """NATS's error as ours."""
    if isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in str(error).lower():
        return BusError(
            Reason.BUS_UNAUTHORIZED,
            f"the bus at {url} refuses this colony secret",
            hint="join with the line that the queen of this colony prints",
        )
    if isinstance(error, nats.js.errors.APIError):
        if error.err_code in _FULL:
            return BusError(
                Reason.BUS_FULL,
                f"the bus at {url} has no room left: {error.description}",
                hint="raise the JetStream storage limit, or delete streams that are no longer needed",
            )
        return BusError(Reason.INTERNAL, f"the bus at {url} refuses: {error.description or error}")
    if isinstance(error, nats.js.errors.NoStreamResponseError):
        return BusError(
            Reason.BUS_UNREACHABLE,
            f"no JetStream answers at {url}",
            hint="an existing nats-server must run with JetStream enabled (-js)",
        )
    return BusError(
        Reason.BUS_UNREACHABLE,
        f"the bus at {url} does not answer: {str(error) or type(error).__name__}",
        hint="is the queen running, and can this host reach that address and port?",
    )


class Subscription(Generic[M]):
    """The messages of a subject in order, as an async iterator; ends when closed, or when the bus is."""

    def __init__(self, name: str, decode: Callable[[Any], M]) -> None:
        self._name = name
        self._decode = decode
        self._items: deque[M] = deque()
        self._wake = asyncio.Event()
        self._ended = False
        self._source: Any = None
        self.dropped = 0

    async def close(self) -> None:
        """Stop listening; what has arrived can still be read."""
        self.end()
        if self._source is not None:
            source, self._source = self._source, None
            try:
                await source.unsubscribe()
            except nats.errors.Error as error:
                log.debug("unsubscribing from %s: %s", self._name, error)

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def receive(self, message: Any) -> None:
        """NATS's callback: decode and keep."""
        try:
            item = self._decode(message)
        except AntfarmError as error:
            log.warning("ignored: %s", error)
            return
        if len(self._items) >= BACKLOG:
            self.dropped += 1
            log.error("a subscriber of %s does not keep up: %d messages lost", self._name, self.dropped)
            return
        self._items.append(item)
        self._wake.set()

    def bind(self, source: Any) -> None:
        self._source = source

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._items.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Bus:
    """One authenticated connection to NATS; made with `Bus.connect`, ended with `close`."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self._nats = Client()
        self._opened = False
        self._resets = 0  # while connecting for the first time
        self._closing = False
        self._closed = asyncio.Event()
        self._subscriptions: WeakSet[Subscription[Any]] = WeakSet()  # NATS keeps those that are open
        self._answers: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, url: str, token: str, name: str, *, within: float = CONNECT_S) -> Bus:
        """Connect and authenticate `within` so many seconds.

        Raises BusError `bus-unreachable` or `bus-unauthorized` at the first refusal: it is for the
        caller to decide whether a bus that was never there is worth waiting for.
        """
        bus = cls(url, name)
        try:
            async with asyncio.timeout(within):
                await bus._open(token, within)
        except TimeoutError:
            await bus.close()
            raise bus_error(TimeoutError(f"no answer within {within:g} s"), url) from None
        except BaseException:
            await bus.close()
            raise
        bus._opened = True
        return bus

    async def _open(self, token: str, within: float) -> None:
        await self._nats.connect(
            servers=[self.url],
            token=token,
            name=self.name,
            connect_timeout=within,
            max_reconnect_attempts=-1,
            reconnect_to_server_handler=_backoff,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
        )

    # ---- state

    @property
    def connected(self) -> bool:
        return bool(self._nats.is_connected)

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message the server takes."""
        return int(self._nats.max_payload)

    async def answers(self, within: float) -> bool:
        """Whether the server responds in time: it may hang while its connections stand.

        By a request that nobody serves, which the server itself answers. Not by a PING: NATS's client
        does not survive a PONG that comes too late.
        """
        if not self.connected:
            return False
        try:
            await self._nats.request(f"{PREFIX}.nobody", timeout=within)
        except nats.errors.NoRespondersError:
            return True
        except (nats.errors.Error, OSError) as error:
            log.debug("the bus at %s does not answer: %s", self.url, str(error) or type(error).__name__)
            return False
        return True

    async def wait_closed(self) -> None:
        """Return when the connection has ended for good: by `close`, or because the server refuses us."""
        await self._closed.wait()

    async def close(self) -> None:
        """Send what is buffered, end every subscription, and disconnect. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        for task in self._answers:
            task.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)
        if self.connected:
            try:
                await self._nats.flush(timeout=1)
            except (nats.errors.Error, OSError) as error:
                log.warning("closing the bus with messages unsent: %s", error)
        try:
            await self._nats.close()
        except (nats.errors.Error, OSError) as error:  # the connection broke before, or does now
            log.debug("closing the bus: %s", str(error) or type(error).__name__)
        self._end()

    def jetstream(self) -> Any:
        """JetStream, for the registry and the ops log."""
        return self._nats.jetstream(timeout=REQUEST_S)

    # ---- messages

    async def publish(self, subject: Subject[M], message: M) -> None:
        """Send an event. While reconnecting it is kept and sent later, up to the client's buffer.

        Raises BusError `bus-unreachable` when the connection is closed or the buffer is full,
        `invalid-request` when the message is larger than the server takes.
        """
        await self._send(subject.name, subject.encode(message))

    async def request(self, subject: RequestSubject[M, R], message: M, within: float = REQUEST_S) -> R:
        """Ask and return the answer.

        Raises the server's own AntfarmError when it answers with a `Failure`; BusError
        `bus-unreachable` at once while disconnected, since a request must not be carried out after
        its asker gave up; the subject's `absent` reason when nobody serves it; `timeout`.
        """
        if not self.connected:
            raise bus_error(ConnectionError("not connected"), self.url)
        data = self._checked(subject.name, subject.encode(message))
        try:
            reply = await self._nats.request(subject.name, data, timeout=within)
        except nats.errors.NoRespondersError:
            raise BusError(
                subject.absent,
                f"{subject.asked} does not answer",
                hint="`antc nodes` shows who is there"
                if subject.absent is Reason.FORAGER_LOST
                else "`antc up` starts a colony",
            ) from None
        except TimeoutError:
            raise BusError(
                Reason.TIMEOUT, f"{subject.asked} gave no answer within {within:g} s", seconds=within
            ) from None
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self.url) from error
        return subject.decode_reply(reply.data)

    async def serve(self, subject: RequestSubject[M, R], handler: Callable[[M], Awaitable[R]]) -> None:
        """Answer every request on `subject`, several at once, until the bus closes.

        A handler's AntfarmError becomes its answer; any other exception is logged with its
        traceback and answered as `internal`; a malformed request is answered as `invalid-request`.
        """

        async def receive(message: Any) -> None:
            task = asyncio.get_running_loop().create_task(self._answer(subject, handler, message))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

        await self._subscribe(subject.pattern, receive)

    async def subscribe(self, subject: Subject[M]) -> Subscription[M]:
        """Every message on `subject` from now on."""
        return await self.listen(subject.pattern, lambda message: subject.decode(message.data))

    async def listen(self, pattern: str, decode: Callable[[Any], M]) -> Subscription[M]:
        """Every message on a raw NATS pattern; `decode` takes NATS's message, headers and all."""
        subscription = Subscription(pattern, decode)
        subscription.bind(await self._subscribe(pattern, subscription.receive))
        self._subscriptions.add(subscription)
        return subscription

    async def _answer(
        self, subject: RequestSubject[M, R], handler: Callable[[M], Awaitable[R]], message: Any
    ) -> None:
        reply: R | Failure
        try:
            reply = await handler(subject.decode(message.data))
        except AntfarmError as error:
            reply = Failure.of(error)
        except Exception as error:  # the asker must hear of any failure
            log.exception("a request on %s failed", message.subject)
            reply = Failure(
                Reason.INTERNAL, f"{type(error).__name__}: {error}", f"see the log of {self.name}"
            )
        if not message.reply:
            log.warning("a request on %s asked for no reply", message.subject)
            return
        try:
            await self._send(message.reply, subject.encode_reply(reply))
        except AntfarmError as error:
            log.error("the answer to a request on %s was not sent: %s", message.subject, error)

    async def _send(self, name: str, data: bytes) -> None:
        try:
            await self._nats.publish(name, self._checked(name, data))
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self.url) from error

    def _checked(self, name: str, data: bytes) -> bytes:
        if len(data) > self.max_payload > 0:
            raise BusError(
                Reason.INVALID_REQUEST,
                f"a message of {len(data)} bytes on {name}; the bus takes at most {self.max_payload}",
                hint="send less at once, or raise the NATS server's max_payload",
                bytes=len(data),
                limit=self.max_payload,
            )
        return data

    async def _subscribe(self, pattern: str, receive: Callable[[Any], Awaitable[None]]) -> Any:
        try:
            return await self._nats.subscribe(pattern, cb=receive)
        except (nats.errors.Error, OSError) as error:
            raise bus_error(error, self.url) from error

    # ---- what NATS tells us

    async def _on_error(self, error: Exception) -> None:
        if not self._opened:  # NATS would try again for ever; raising here ends its attempt
            if isinstance(error, ConnectionError) and self._resets < RESETS and self._nats._server_info:
                # A server that has said who it is and then resets: its refusal of our token may have
                # been lost in the reset that follows it. The next attempt will tell.
                self._resets += 1
                return
            raise bus_error(error, self.url)
        if isinstance(error, nats.errors.SlowConsumerError):
            log.error("%s does not keep up with %s: messages were lost", self.name, error.subject)
        else:
            log.debug("bus: %s: %s", type(error).__name__, error)

    async def _on_disconnected(self) -> None:
        if not self._closing:
            log.warning("%s lost the bus at %s; reconnecting", self.name, self.url)

    async def _on_reconnected(self) -> None:
        log.info("%s is back on the bus at %s", self.name, self.url)

    async def _on_closed(self) -> None:
        if not self._closing:
            log.error(
                "the bus at %s closed the connection of %s: %s", self.url, self.name, self._nats.last_error
            )
        self._end()

    def _end(self) -> None:
        self._closed.set()
        for subscription in self._subscriptions:
            subscription.end()
        self._subscriptions.clear()


def _backoff(servers: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
    """NATS asks which server to try next, and after how many seconds: the least tried, soon enough that who
    comes back last is not lost for those who came back first."""
    server = min(servers, key=lambda s: s.reconnects)
    return server, min(RETRY_S, 0.1 * 2.0 ** min(server.reconnects, 6))
