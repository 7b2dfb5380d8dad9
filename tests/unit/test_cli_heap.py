"""What daemons read does not leave holes in their heap."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from antfarm.cli.serve import keep_heap_whole

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks "
                "uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info

def outside(size):
    before = libc.mallinfo2().hblks
    buffer = bytearray(size)
    return libc.mallinfo2().hblks > before

keep_heap_whole()
print([outside(4 << 20) for _ in range(3)])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="a matter of glibc")
def test_large_buffers_stay_outside_of_the_heap() -> None:
    """By default glibc has only the first of them there."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, True]"
