"""Meshes over real sockets: sums, steps, and every way that a peer can fail."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.meshes import SECRET, STEP_S, batch_of, listeners, plan_of, run, spec_of
from support.rounding import rounded

from antfarm.errors import AntfarmError, LinkError, Reason
from antfarm.link import Listener, Mesh, MeshSpec
from antfarm.link import listener as listener_module
from antfarm.messages import Peer
from antfarm.secret import Secret
from antfarm.types import RunOptions, WireFormat


def specs(*ranks: int, **changes: Any) -> list[MeshSpec]:
    plan = plan_of(*ranks)
    return [spec_of(plan, shard, **changes) for shard in range(len(plan.parts))]


def noise(seed: int, rows: int, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width), np.float32)


def sockets_of(mesh: Mesh) -> list[socket.socket]:
    return [channel.sock for channel in mesh._channels.values()]


def shrink_buffers(mesh: Mesh) -> None:
    for sock in sockets_of(mesh):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)


# ---- sums


@pytest.mark.parametrize("form", WireFormat)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_ranks_get_the_same_bits(ranks: int, form: WireFormat) -> None:
    """Equal to the f32 sum, in rank order, of what each rank's partial is on the wire."""
    sizes = [1, 7, 128, 1]

    def body(shard: int, mesh: Mesh) -> list[bytes]:
        out = []
        for i, rows in enumerate(sizes):
            total = np.empty((rows, 64), np.float32)
            mesh.all_reduce(noise(100 * i + shard, rows), total)
            out.append(total.tobytes())
        return out

    got = run(specs(ranks, options=RunOptions(chunk=128, wire=form)), body)
    for i, rows in enumerate(sizes):
        expected = rounded(form, noise(100 * i, rows))
        for rank in range(1, ranks):
            expected = expected + rounded(form, noise(100 * i + rank, rows))
        assert [each[i] for each in got] == [expected.tobytes()] * ranks


@pytest.mark.parametrize("form", WireFormat)
def test_steps_of_many_sizes_take_no_memory_of_their_own(form: WireFormat) -> None:
    def body(shard: int, mesh: Mesh) -> int:
        for rows in range(128, 0, -1):
            mesh.all_reduce(noise(shard, rows), np.empty((rows, 64), np.float32))
            if rows == 128 and shard == 0:
                tracemalloc.start()
        return tracemalloc.get_traced_memory()[0]

    try:
        kept = run(specs(2, options=RunOptions(chunk=128, wire=form)), body)
    finally:
        tracemalloc.stop()
    assert max(kept) < 1 << 20  # a row takes 256 bytes


def test_full_buffers_both_ways_do_not_lock_up() -> None:
    """1 MiB each way between three ranks whose kernels hold a small part of it."""

    def body(shard: int, mesh: Mesh) -> float:
        shrink_buffers(mesh)
        partial = np.full((128, 2048), shard + 1, np.float32)
        total = np.empty_like(partial)
        mesh.all_reduce(partial, total)
        return float(total.min() + total.max())

    got = run(specs(3, width=2048), body)
    assert got == [12.0] * 3


def test_traffic_is_counted() -> None:
    def body(shard: int, mesh: Mesh) -> tuple[int, int, float]:
        total = np.empty((2, 64), np.float32)
        mesh.all_reduce(noise(shard, 2), total)
        return mesh.bytes_sent, mesh.bytes_received, mesh.seconds_waited

    for sent, received, waited in run(specs(3), body):
        assert sent == received == 2 * (40 + 2 * 64 * 4)
        assert 0 < waited < 10


# ---- steps


def drive(shard: int, mesh: Mesh, ranks: int, *, steps: int, in_flight: int, rows: int) -> list[Any] | None:
    """Every shard adds 1 to each row; with several ranks, partial sums make that 1."""

    def forward(hidden: np.ndarray) -> np.ndarray:
        if ranks == 1:
            return hidden + 1
        total = np.empty_like(hidden)
        mesh.all_reduce(np.full_like(hidden, 1 / ranks), total)
        return hidden + total

    if shard:
        for _ in range(steps):
            step = mesh.receive_step()
            assert step is not None
            mesh.pass_on(step, forward(step.rows))
        return None
    results = []
    for number in range(steps):
        wanted = [rows - 1] if number % 3 else []
        hidden = np.full((rows, mesh._spec.width), float(number), np.float32)
        step = mesh.start_step(batch_of(rows, wanted), hidden)
        mesh.pass_on(step, forward(hidden))
        if number >= in_flight:
            results.append(mesh.receive_result())
    results += [mesh.receive_result() for _ in range(min(in_flight, steps))]
    return results


@pytest.mark.parametrize("ranks", [(1,), (2,), (1, 1), (1, 1, 1), (2, 2), (2, 1), (1, 2), (4, 2)])
@pytest.mark.parametrize("in_flight", [0, 4])
def test_steps_pass_all_stages_in_order(ranks: tuple[int, ...], in_flight: int) -> None:
    all_specs = specs(*ranks)
    stage_ranks = [part.ranks for part in all_specs[0].plan.parts]
    got = run(
        all_specs,
        lambda shard, mesh: drive(shard, mesh, stage_ranks[shard], steps=10, in_flight=in_flight, rows=4),
    )
    assert got[1:] == [None] * (len(got) - 1), got
    assert [result.number for result in got[0]] == list(range(10))
    for result in got[0]:
        assert result.rows.shape == (1 if result.number % 3 else 0, 64)
        assert np.allclose(result.rows, result.number + len(ranks))


@pytest.mark.parametrize("ranks", [(1, 1, 1), (2, 2)])
def test_more_in_flight_than_the_kernel_holds_does_not_lock_up(ranks: tuple[int, ...]) -> None:
    """Twelve 512 KiB steps come back whole, to a lead that asks for none before it sent them all."""
    rows, steps = 64, 12

    def forward(mesh: Mesh, hidden: np.ndarray) -> np.ndarray:
        if ranks[0] == 1:
            return hidden
        total = np.empty_like(hidden)
        mesh.all_reduce(hidden / 2, total)
        return total

    def body(shard: int, mesh: Mesh) -> list[float] | None:
        shrink_buffers(mesh)
        for number in range(steps):
            if shard == 0:
                hidden = np.full((rows, 2048), number, np.float32)
                step = mesh.start_step(batch_of(rows, range(rows)), hidden)
            else:
                received = mesh.receive_step()
                assert received
                step, hidden = received, received.rows
            mesh.pass_on(step, forward(mesh, hidden))
        return [float(mesh.receive_result().rows.mean()) for _ in range(steps)] if shard == 0 else None

    got = run(specs(*ranks, width=2048), body)
    assert got[0] == [float(number) for number in range(steps)], got


# ---- peers that fail


def failing(body: Callable[[int, Mesh], Any], *ranks: int, **changes: Any) -> list[LinkError]:
    """The errors of all shards but the last, which misbehaves by `body` and returns."""
    last = sum(ranks) - 1

    def shard_body(shard: int, mesh: Mesh) -> Any:
        if shard == last:
            return body(shard, mesh)
        return drive(shard, mesh, ranks[0], steps=50, in_flight=0, rows=4)

    got = run(specs(*ranks, **changes), shard_body)
    assert all(isinstance(each, LinkError) for each in got[:last]), got
    return got[:last]


def _serve_one_then_hang(listener: Listener, peers: list[Peer], spec: MeshSpec, said: Any) -> None:
    with Mesh.connect(listener, spec, peers) as mesh:
        step = mesh.receive_step()
        assert step
        mesh.all_reduce(step.rows, np.empty_like(step.rows))
        said.set()
        signal.pause()


@contextmanager
def peer_process(bound: Listener, peers: list[Peer], spec: MeshSpec) -> Iterator[tuple[Any, Any]]:
    """A process that takes part in one exchange and then hangs."""
    context = multiprocessing.get_context("fork")
    said = context.Event()
    process = context.Process(target=_serve_one_then_hang, args=(bound, peers, spec, said))
    process.start()
    bound.close()
    try:
        yield process, said
    finally:
        process.kill()
        process.join()


def test_a_killed_peer_is_named_at_once() -> None:
    ours, theirs = specs(2)
    bound, peers = listeners(2)
    with (
        peer_process(bound[1], peers, theirs) as (process, said),
        Mesh.connect(bound[0], ours, peers) as mesh,
    ):
        rows = noise(0, 4)
        mesh.start_step(batch_of(4), rows)
        mesh.all_reduce(rows, np.empty_like(rows))
        assert said.wait(30)
        mesh.check()  # alive
        os.kill(process.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(LinkError) as caught:
            mesh.all_reduce(rows, np.empty_like(rows))
        assert time.monotonic() - began < STEP_S / 2
        assert (caught.value.reason, caught.value.peer) == (Reason.LINK_LOST, "shard 1")
        with pytest.raises(LinkError, match="lost shard 1"):
            mesh.check()


def test_a_stalled_peer_times_out_by_name() -> None:
    ours, theirs = specs(2, step_s=2.0)
    bound, peers = listeners(2)
    with (
        peer_process(bound[1], peers, theirs) as (_, said),
        Mesh.connect(bound[0], ours, peers) as mesh,
    ):
        rows = noise(0, 4)
        mesh.start_step(batch_of(4), rows)
        mesh.all_reduce(rows, np.empty_like(rows))
        assert said.wait(30)
        began = time.monotonic()
        with pytest.raises(LinkError) as caught:
            mesh.all_reduce(rows, np.empty_like(rows))
        assert 1.9 < time.monotonic() - began < STEP_S / 2
        assert (caught.value.reason, caught.value.peer) == (Reason.LINK_TIMEOUT, "shard 1")


def test_a_pipelines_lead_names_the_stage_that_went() -> None:
    """The middle one of three goes while the lead waits for the last one's result."""

    def body(shard: int, mesh: Mesh) -> Any:
        if shard == 1:
            assert mesh.receive_step()
            raise RuntimeError("gone")
        if shard == 2:
            return mesh.receive_step()
        rows = noise(0, 4)
        mesh.pass_on(mesh.start_step(batch_of(4), rows), rows)
        return mesh.receive_result()

    got = run(specs(1, 1, 1), body)
    assert (got[0].reason, got[0].peer) == (Reason.LINK_LOST, "shard 1")
    assert got[2].reason is Reason.LINK_LOST


def test_garbage_in_an_exchange_is_named() -> None:
    def body(shard: int, mesh: Mesh) -> None:
        for sock in sockets_of(mesh):
            sock.sendall(bytes(range(256)) * 8)

    (error,) = failing(body, 2)
    assert (error.reason, error.peer) == (Reason.LINK_GARBAGE, "shard 1")
    assert "magic" in error.message


def test_a_skipped_exchange_is_noticed() -> None:
    def body(shard: int, mesh: Mesh) -> None:
        assert mesh._exchange is not None
        mesh._exchange._count = 1
        with pytest.raises(LinkError, match="step 0 instead of 1"):
            mesh.all_reduce(noise(1, 4), np.empty((4, 64), np.float32))

    (error,) = failing(body, 2)
    assert error.reason is Reason.LINK_GARBAGE and "step 1 instead of 0" in error.message


def test_a_step_of_another_size_in_an_exchange_is_noticed() -> None:
    def body(shard: int, mesh: Mesh) -> None:
        mesh.all_reduce(noise(1, 5), np.empty((5, 64), np.float32))

    (error,) = failing(body, 2)
    assert error.reason is Reason.LINK_GARBAGE and "5 rows instead of 4" in error.message


def test_a_repeated_step_is_noticed() -> None:
    def body(shard: int, mesh: Mesh) -> Any:
        if shard == 1:
            assert mesh.receive_step()
            return mesh.receive_step()
        step = mesh.start_step(batch_of(4), noise(0, 4))
        mesh.pass_on(step, noise(0, 4))
        mesh.pass_on(step, noise(0, 4))
        return mesh.receive_result()

    error = run(specs(1, 1), body)[1]
    assert isinstance(error, LinkError) and "step 0 instead of 1" in error.message


@pytest.mark.parametrize("outputs", [(), (0, 3)])
def test_a_result_of_other_rows_than_were_wanted_is_noticed(outputs: tuple[int, ...]) -> None:
    def body(shard: int, mesh: Mesh) -> Any:
        if shard == 1:
            step = mesh.receive_step()
            assert step
            mesh.pass_on(replace(step, batch=batch_of(4, outputs)), step.rows)
            return mesh.receive_step()
        step = mesh.start_step(batch_of(4, [3]), noise(0, 4))
        mesh.pass_on(step, noise(0, 4))
        return mesh.receive_result()

    error = run(specs(1, 1), body)[0]
    assert isinstance(error, LinkError) and (error.reason, error.peer) == (Reason.LINK_GARBAGE, "shard 1")
    assert f"{len(outputs)} rows of step 0; wanted: 1" in error.message


def test_a_follower_waits_until_it_is_stopped() -> None:
    def body(shard: int, mesh: Mesh) -> Any:
        if shard == 0:
            return "lead"
        timer = threading.Timer(0.1, mesh.stop)
        timer.start()
        assert mesh.receive_step() is None
        timer.join()
        return "stopped"

    assert run(specs(1, 1), body) == ["lead", "stopped"]


# ---- meeting


def test_a_wrong_secret_is_refused_on_both_sides() -> None:
    plan = plan_of(1, 1)
    ours = spec_of(plan, 0)
    theirs = spec_of(plan, 1, secret=Secret("not the colony's secret"))
    listening, dialing = run([ours, theirs], lambda shard, mesh: "linked", link_s=4.0)
    for error, peer in ((listening, "shard 1"), (dialing, "shard 0")):
        assert isinstance(error, LinkError)
        assert (error.reason, error.peer) == (Reason.LINK_REFUSED, peer)
        assert "the colony secrets differ" in error.message


def test_an_older_epoch_is_fenced_out() -> None:
    plan = plan_of(2)
    listening, dialing = run(
        [spec_of(plan, 0), spec_of(plan, 1, epoch=2)], lambda shard, mesh: "linked", link_s=4.0
    )
    assert listening.reason is dialing.reason is Reason.LINK_REFUSED
    assert "epoch 2; this is epoch 3" in listening.message


def test_strangers_do_not_keep_peers_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the peer comes: one that talks HTTP, one silent, one slow, one gone, and a wrong secret."""
    monkeypatch.setattr(listener_module, "HANDSHAKE_S", 2.0)
    bound, peers = listeners(2)
    port = bound[0].port
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    try:
        strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: colony\r\n\r\n".ljust(2000, b"."))
        strangers[1].sendall(b"ANTLINK\x01")
        strangers[3].close()
        plan = plan_of(1, 1)
        wrong = spec_of(plan, 1, secret=Secret("not the colony's secret"))
        results: list[Any] = []

        def lead() -> None:
            with Mesh.connect(bound[0], spec_of(plan, 0), peers, 30) as mesh:
                results.append(drive(0, mesh, 1, steps=3, in_flight=0, rows=2))

        thread = threading.Thread(target=lead)
        thread.start()
        with pytest.raises(LinkError, match="secrets differ"):
            Mesh.connect(Listener.bind("127.0.0.1"), wrong, peers, 30)
        assert strangers[2].recv(1) == b""  # the silent one was let go in time
        with Mesh.connect(bound[1], spec_of(plan, 1), peers, 30) as mesh:
            assert drive(1, mesh, 1, steps=3, in_flight=0, rows=2) is None
            thread.join(30)
        assert len(results[0]) == 3
        with pytest.raises(OSError):  # the port is closed once the mesh stands
            socket.create_connection(("127.0.0.1", port), timeout=2)
    finally:
        for sock in strangers:
            sock.close()
    assert {"a stranger's bytes", "no handshake within 2 s", "the colony secrets differ"} <= {
        record.getMessage().split(": ", 1)[1] for record in caplog.records
    }


def test_a_peer_that_comes_late_is_waited_for() -> None:
    plan = plan_of(1, 1)
    bound, peers = listeners(2)
    bound[0].close()  # shard 0 does not listen yet
    port = peers[0].port

    def late() -> None:
        again = Listener.bind("127.0.0.1", port)
        Mesh.connect(again, spec_of(plan, 0), peers, 10).close()

    timer = threading.Timer(0.3, late)
    timer.start()
    Mesh.connect(bound[1], spec_of(plan, 1), peers, 10).close()
    timer.join()


def test_a_peer_that_never_comes_is_named() -> None:
    plan = plan_of(2)
    bound, peers = listeners(2)
    began = time.monotonic()
    with pytest.raises(LinkError) as caught:
        Mesh.connect(bound[0], spec_of(plan, 0), peers, 0.3)
    assert (caught.value.reason, caught.value.peer) == (Reason.LINK_TIMEOUT, "shard 1")
    bound[1].close()
    with pytest.raises(LinkError) as caught:
        Mesh.connect(Listener.bind("127.0.0.1"), spec_of(plan, 1), peers, 0.3)
    assert (caught.value.reason, caught.value.peer) == (Reason.LINK_TIMEOUT, "shard 0")
    assert time.monotonic() - began < 10


def test_another_service_on_the_peers_port_is_called_garbage() -> None:
    plan = plan_of(2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                sock.sendall(b"SSH-2.0-something that is no shard at all\r\n" * 4)
                sock.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        peers = [Peer(0, "shard 0", "127.0.0.1", server.getsockname()[1])]
        with pytest.raises(LinkError) as caught:
            Mesh.connect(Listener.bind("127.0.0.1"), spec_of(plan, 1), peers, 30)
        thread.join()
    assert (caught.value.reason, caught.value.peer) == (Reason.LINK_GARBAGE, "shard 0")


def test_q8_wants_whole_blocks() -> None:
    plan = plan_of(2)
    spec = spec_of(plan, 0, width=48, options=RunOptions(wire=WireFormat.Q8))
    with pytest.raises(AntfarmError) as caught:
        Mesh.connect(Listener.bind("127.0.0.1"), spec, [], 1)
    assert caught.value.reason is Reason.BAD_SETTING


def test_a_taken_port_and_an_impossible_address_are_named() -> None:
    first = Listener.bind("127.0.0.1")
    try:
        with pytest.raises(AntfarmError) as caught:
            Listener.bind("127.0.0.1", first.port)
        assert caught.value.reason is Reason.PORT_IN_USE and str(first.port) in caught.value.message
    finally:
        first.close()


def test_the_secret_is_in_no_error_and_no_repr() -> None:
    assert SECRET.reveal() not in repr(spec_of(plan_of(2), 0))
