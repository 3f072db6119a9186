"""Returns memory to the system that the allocator keeps after a burst of clients."""

from __future__ import annotations

import ctypes
import os

from tidegate.limiter.background import Repeating

__all__ = ["SpareMemory"]

_INTERVAL = 2.0
# Less memory is not worth the milliseconds for which other threads may wait for the allocator.
_LEAST = 24 << 20


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class SpareMemory:
    """A thread that has the allocator return free memory, once there is much more than before.

    glibc keeps freed memory that lies below memory in use. Other C libraries do not need this.
    """

    def __init__(self, *, interval: float = _INTERVAL, least: int = _LEAST) -> None:
        self.returned = 0
        """The number of times that memory was returned."""
        self._least = least
        # Since memory was returned last:
        self._least_free = 0
        self._least_resident = 0
        self._repeating = Repeating(self.give_back, interval, "tidegate memory")
        library = ctypes.CDLL(None)
        self._info = getattr(library, "mallinfo2", None)
        self._trim = getattr(library, "malloc_trim", None)
        if self._info is not None:
            self._info.restype = _Mallinfo2

    def start(self) -> None:
        """Starts the thread, unless the C library has no such calls."""
        if self._info is not None and self._trim is not None:
            self._repeating.start()

    def close(self) -> None:
        """Ends the thread."""
        self._repeating.close(5.0)

    def give_back(self) -> bool:
        """Returns memory to the system if there is enough of it, and whether it did so."""
        resident, free = self._resident(), self._free()
        # The allocator still counts returned memory as free. Some of it is in use again if less
        # memory is free than after the return, or if the process has grown.
        self._least_free = min(self._least_free, free)
        self._least_resident = min(self._least_resident, resident)
        spare = max(free - self._least_free, min(free, resident - self._least_resident))
        if spare < self._least:
            return False
        assert self._trim is not None
        self._trim(0)
        self._least_free, self._least_resident = self._free(), self._resident()
        self.returned += 1
        return True

    def _free(self) -> int:
        assert self._info is not None
        return int(self._info().fordblks)

    def _resident(self) -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
