"""`python -m antfarm.forager.probe`: what ggml can do here, told as one JSON line by a process of its own.

The daemon never loads ggml: a native library that is built for another processor ends the process
that loads it.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from antfarm.errors import Reason, StateError

PROBE_S = 60.0


class Capabilities(msgspec.Struct, frozen=True):
    backends: tuple[str, ...]
    features: tuple[str, ...]
    architectures: tuple[str, ...]


async def probe() -> Capabilities:
    """Ask a child process. Raises StateError `engine-unavailable` with its last words."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "antfarm.forager.probe",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), PROBE_S)
    except BaseException as error:
        if child.returncode is None:
            child.kill()
            await child.wait()
        if isinstance(error, TimeoutError):
            raise _unavailable(f"it took longer than {PROBE_S:g} s") from None
        raise
    if child.returncode:
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        raise _unavailable(f"exit code {child.returncode}: {''.join(last) or 'no words'}")
    return msgspec.json.decode(out, type=Capabilities)


def _unavailable(why: str) -> StateError:
    return StateError(
        Reason.ENGINE_UNAVAILABLE,
        f"ggml can't be used here: {why}",
        hint="`antc doctor` says what is missing",
    )


def main() -> None:
    from antfarm import engine

    backends = tuple(str(name) for name in engine.backends())
    found = Capabilities(backends, tuple(engine.features()), tuple(engine.ARCHITECTURES))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
