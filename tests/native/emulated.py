"""The core, built for another processor and run by an emulator, with the functions of a `ctypes.CDLL`.

`HEED_EMULATOR` is the command that runs `heed_serve`, the program of serve.cc, for example
`qemu-aarch64-static -L /usr/aarch64-linux-gnu -cpu max build/heed_serve`. With it, `core.load` returns a `Library`, so
that all tests of the C interface run on that processor, while NumPy, the reference included, runs on this one.

Both processes map the same memory at the same address. NumPy's arrays are allocated in it; structures are copied there
for each call. Only the thread that loads the library makes such arrays.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import shlex
import struct
import subprocess
import weakref
from collections import defaultdict
from ctypes import (
    CFUNCTYPE,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_void_p,
    py_object,
)
from typing import Any

import numpy as np

from tests.native.structs import decoder

ADDRESS, SIZE = 1 << 36, 4 << 30  # far from where Linux maps anything
LEAST_PAGES = 1 << 16  # enough for the page of any processor
# How many a pointer points to; one for others.
COUNTS = {
    "rules": "rule_count",
    "captures": "capture_count",
    "scatters": "scatter_count",
    "layers": "layer_count",
}
STRUCTURES = {"encoder": decoder.Stack, "layers": decoder.Layer}  # behind pointers without a type
MOST = 8  # of these
MALLOC = CFUNCTYPE(c_void_p, c_void_p, c_size_t)
CALLOC = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
REALLOC = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)
FREE = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)


class Handler(Structure):
    """NumPy's PyDataMem_Handler."""

    _fields_ = (
        ("name", c_char * 127),
        ("version", c_uint8),
        ("context", c_void_p),
        ("malloc", MALLOC),
        ("calloc", CALLOC),
        ("realloc", REALLOC),
        ("free", FREE),
    )


class Memory:
    """The shared memory: blocks of powers of two, each power with a list of free blocks."""

    def __init__(self) -> None:
        self.file = os.memfd_create("heed")
        os.ftruncate(self.file, SIZE)
        system = ctypes.CDLL(None, use_errno=True)
        system.mmap.restype = c_void_p
        system.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_int64]
        fixed = 0x100000  # MAP_FIXED_NOREPLACE
        flags = mmap.MAP_SHARED | fixed
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        if system.mmap(ADDRESS, SIZE, protection, flags, self.file, 0) != ADDRESS:
            raise OSError(ctypes.get_errno(), f"nothing can be mapped at {ADDRESS:#x}")
        self.next = ADDRESS + LEAST_PAGES
        self.free_blocks: dict[int, list[int]] = defaultdict(list)
        self.sizes: dict[int, int] = {}
        self.free_pages: dict[int, list[int]] = defaultdict(list)
        self.handler = Handler(
            b"heed_shared",
            1,
            None,
            MALLOC(lambda _, size: self.allocate(size)),
            CALLOC(lambda _, count, size: self.allocate(count * size, zero=True)),
            REALLOC(self._move),
            FREE(lambda _, at, __: self.free(at)),
        )

    def allocate(self, size: int, zero: bool = False) -> int:
        block = 1 << max(int(size) - 1, 15).bit_length()
        free = self.free_blocks[block]
        if free:
            at = free.pop()
            if zero:
                ctypes.memset(at, 0, block)
        else:
            # Not on a multiple of 32: `malloc` promises 16.
            at = self.next + (16 if block < LEAST_PAGES else 0)
            self.next += block + (16 if block < LEAST_PAGES else 0)
            if self.next > ADDRESS + SIZE:
                return 0
        self.sizes[at] = block
        return at

    def free(self, at: int | None) -> None:
        if at:
            self.free_blocks[self.sizes.pop(at)].append(at)

    def _move(self, _: Any, at: int | None, size: int) -> int:
        moved = self.allocate(size)
        if at and moved:
            ctypes.memmove(moved, at, min(size, self.sizes[at]))
            self.free(at)
        return moved

    def pages(self, size: int) -> np.ndarray:
        """Return zeros that begin a page.

        Freed ones are used again for the same size, with their protected pages: each of those is a mapping, and Linux
        allows a process 65,530.
        """
        free = self.free_pages[size]
        if free:
            at = free.pop()
            ctypes.memset(at, 0, size)
        else:
            at = -(-self.next // LEAST_PAGES) * LEAST_PAGES
            self.next = at + size
        made = (c_uint8 * size).from_address(at)
        weakref.finalize(made, free.append, at).atexit = False
        return np.ctypeslib.as_array(made)

    def use_for_arrays(self) -> None:
        """All arrays that this thread makes from now on lie here."""
        try:
            from numpy._core import _multiarray_umath as numpy_core
        except ImportError:  # NumPy 1
            from numpy.core import _multiarray_umath as numpy_core
        python = ctypes.pythonapi
        python.PyCapsule_GetPointer.restype = c_void_p
        python.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]
        python.PyCapsule_New.restype = py_object
        python.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
        table = python.PyCapsule_GetPointer(numpy_core._ARRAY_API, None)
        set_handler = (c_void_p * 305).from_address(table)[304]
        self.capsule = python.PyCapsule_New(ctypes.addressof(self.handler), b"mem_handler", None)
        ctypes.PYFUNCTYPE(py_object, py_object)(set_handler)(self.capsule)

    def stop_freeing(self) -> None:
        """Python's last arrays are freed when no Python can be called any more: by a function that does nothing."""
        nothing = ctypes.cast(ctypes.CDLL(None).getpid, c_void_p).value
        assert nothing is not None
        self.handler.free = FREE(nothing)
        ctypes.pythonapi.Py_IncRef(py_object(self))

    def __contains__(self, at: int) -> bool:
        return ADDRESS <= at < ADDRESS + SIZE


class Function:
    """A function of the library. As of a CDLL, its types can be set."""

    restype: Any = c_int

    def __init__(self, library: Library, name: str) -> None:
        self.library, self.name = library, name
        self.argtypes: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self.library.call(self.name, arguments, self.restype)


class Library:
    def __init__(self, command: str) -> None:
        self.memory = Memory()
        self.memory.use_for_arrays()
        atexit.register(self.memory.stop_freeing)
        shared = [str(self.memory.file), str(ADDRESS), str(SIZE)]
        self.process = subprocess.Popen(
            [*shlex.split(command), *shared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self.memory.file],
        )
        self.functions: dict[str, Function] = {}

    def __getattr__(self, name: str) -> Function:
        return self.functions.setdefault(name, Function(self, name))

    def call(self, name: str, arguments: Any, restype: Any) -> Any:
        placed: list[int] = []
        values = [self._value(x, placed) for x in arguments]
        values += [0] * (8 - len(values))
        request = struct.pack("40sq8q", name.encode(), restype is c_char_p, *values)
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(request)
        stdin.flush()
        reply = stdout.read(16)
        if len(reply) < 16:
            raise OSError(f"{name} ended the emulator: exit status {self.process.wait()}")
        value, size = struct.unpack("qq", reply)
        text = stdout.read(size)
        for given, at in zip(arguments, values, strict=False):
            if hasattr(given, "_obj") and not isinstance(given._obj, Structure):
                given._obj.value = c_void_p.from_address(at).value
        for at in placed:
            self.memory.free(at)
        if restype is c_char_p:
            return text if value else None
        if restype is None:
            return None
        return value if restype is c_int64 else c_int32(value & 0xFFFFFFFF).value

    def _value(self, x: Any, placed: list[int]) -> int:
        """Return an argument as a number; what it points to is copied to shared memory."""
        if hasattr(x, "_obj"):  # ctypes.byref
            x = x._obj
            return self._place(x, ctypes.sizeof(x), placed, type(x))
        if isinstance(x, Structure):
            return self._place(x, ctypes.sizeof(x), placed, type(x))
        if isinstance(x, bytes):
            return self._place(ctypes.create_string_buffer(x), len(x) + 1, placed, c_char)
        return int(getattr(x, "value", x) or 0)

    def _place(self, source: Any, size: int, placed: list[int], kind: Any) -> int:
        at = self.memory.allocate(size)
        placed.append(at)
        ctypes.memmove(at, ctypes.addressof(source), size)
        if issubclass(kind, Structure):
            for k in range(size // ctypes.sizeof(kind)):
                self._place_pointers(kind.from_address(at + k * ctypes.sizeof(kind)), placed)
        return at

    def _count(self, copy: Any, name: str) -> int:
        """Return how many structures a pointer points to, as far as they are copied."""
        return max(0, min(getattr(copy, COUNTS[name]), MOST)) if name in COUNTS else 1

    def _place_pointers(self, copy: Any, placed: list[int]) -> None:
        for name, kind in copy._fields_:
            value = getattr(copy, name)
            if isinstance(value, Structure):
                self._place_pointers(value, placed)
            elif kind is c_void_p and name in STRUCTURES and value:
                pointed = STRUCTURES[name]
                size = ctypes.sizeof(pointed) * self._count(copy, name)
                if size:
                    at = self._place(pointed.from_address(value), size, placed, pointed)
                    setattr(copy, name, at)
            elif kind is c_void_p:
                if value and value not in self.memory:
                    raise ValueError(f"`{name}` is not in the memory that the emulator shares")
            elif hasattr(kind, "contents") and value:
                size = ctypes.sizeof(kind._type_) * self._count(copy, name)
                if size:
                    at = self._place(value.contents, size, placed, kind._type_)
                    setattr(copy, name, ctypes.cast(at, kind))


library: Library | None = None  # of which a process has one at most


def load(command: str) -> Library:
    global library
    library = library or Library(command)
    return library
