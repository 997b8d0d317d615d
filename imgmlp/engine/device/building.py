"""KernelBuilding: from OpenCL C to kernel objects, in this process or with the help of others.

PoCL, the CPU driver, compiles a kernel twice: ``clBuildProgram`` makes LLVM bitcode, and the
first launch of each (kernel, local size, small or large grid) makes machine code on the driver's
own thread, where a failure ends the process. Both steps write one cache directory that all
processes share, so both take one file lock, `KernelBuilding._compiling`.
"""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any

from imgmlp.child import available_cores
from imgmlp.engine.device import driver_errors
from imgmlp.engine.device.base import DeviceInfo, HostCopies, KernelHandle
from imgmlp.engine.device.build_beside import MIN_BUILD_SECONDS, Builders
from imgmlp.engine.device.compile_beside import max_processes
from imgmlp.engine.device.driver import NVIDIA, check_not_forked, cl
from imgmlp.engine.device.kernel_cache import (
    LOCK_NAME,
    cache_folder,
    has_space,
    locked,
    was_removed,
)
from imgmlp.engine.device.pocl import PLATFORM, SKIP_HEADER_OPTION, WHEEL_VERSION

# Processes that build parts of a program: any device may have MIN_BUILDERS, and up to MAX_BUILDERS
# with BYTES_PER_BUILDER of its memory for each. On 16 cores of a Xeon a latent step was built in
# 1.2 s with seven, in 2.5 s with three.
MAX_BUILDERS = 7
MIN_BUILDERS = 3
BYTES_PER_BUILDER = 1 << 31
WRAPPER_PREFIX = "<generated: 'pyopencl invoker for "  # of the source name of a call wrapper
MAX_CACHED_SOURCES = 200  # files in Python's linecache, before wrappers are removed from it


class KernelBuilding(HostCopies):
    """The part of a Device that builds kernels."""

    info: DeviceInfo
    _context: Any

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self._compiles_late = info.platform == PLATFORM  # machine code at the first launch
        self._passes_over_header = self._compiles_late and info.driver == WHEEL_VERSION
        self._programs: dict[tuple[str, tuple[str, ...]], Any] = {}  # by source and options
        self._builders: Builders | None = None
        self._close_builders: weakref.finalize[..., Any] | None = None

    def finish(self) -> None:
        """Wait until all queued work is done."""
        raise NotImplementedError

    @property
    def builds_in_parts(self) -> bool:
        """Whether a program is better built in parts, some of them by other processes."""
        return self.info.platform == NVIDIA

    def build(
        self, source: str, names: Sequence[str], options: Sequence[str] = ()
    ) -> dict[str, KernelHandle]:
        """Compile OpenCL C and return the named kernels; repeated calls reuse the program.

        Drivers cache what they compile on disk. With the PoCL of the wheel, a source without
        options compiles faster if kernels/declarations.cl declares all that it uses. Raises
        DeviceError with the compiler's log, and with the path of the saved source in its hint.
        """
        check_not_forked()
        key = (source, tuple(options))
        if key not in self._programs:
            with self._compiling():
                self._programs[key] = self._compile(source, options)
        program = self._programs[key]
        kernels = {name: self._kernel(program, name) for name in names}
        return {name: KernelHandle(name, program, k, [k]) for name, k in kernels.items()}

    def expect_programs(self) -> None:
        """Start other processes that help to build the programs that are expected soon."""
        before = self._builders
        by_memory = self.info.memory // BYTES_PER_BUILDER
        count = max_processes(available_cores(), max(MIN_BUILDERS, min(MAX_BUILDERS, by_memory)))
        if not self.builds_in_parts or not count:
            return
        if before is not None and before.working:
            before.expect()
        elif before is None or not before.is_useless:
            self._builders = Builders(self.info.spec, count)
            if self._close_builders is not None:
                self._close_builders.detach()
            self._close_builders = weakref.finalize(self, self._builders.close)

    def begin_parts(self, parts: Iterable[str]) -> None:
        """Let other processes, if there are any, begin with what build_parts() will be given."""
        if self._builders is not None and self._has_builders:
            self._builders.offer([part for part in parts if (part, ()) not in self._programs])

    def build_parts(self, parts: Mapping[str, Sequence[str]]) -> dict[str, KernelHandle]:
        """As build(), for several sources: each maps to the names of its kernels."""
        new = [source for source in parts if (source, ()) not in self._programs]
        own = partial(self.build, names=())
        if len(new) > 2 and not self._has_builders:
            began, first = time.perf_counter(), new.pop(0)
            own(first)
            if time.perf_counter() - began > MIN_BUILD_SECONDS:
                self.expect_programs()
        if self._builders is not None and self._has_builders:
            self.compiling += self._builders.build(new, own)
        handles: dict[str, KernelHandle] = {}
        for source, names in parts.items():
            handles |= self.build(source, names)
        return handles

    @property
    def _has_builders(self) -> bool:
        """Whether there are processes that help to build parts."""
        return self._builders is not None and self._builders.working

    def _dismiss_builders(self) -> bool:
        """End the helping processes to free their memory; returns whether there were any."""
        if self._builders is None or not self._has_builders:
            return False
        self._builders.close()
        return True

    def _compile(self, source: str, options: Sequence[str]) -> Any:
        if self._passes_over_header and not options:
            # An error comes up again below, then with the line numbers of the source alone.
            with contextlib.suppress(cl.Error):
                return self._built(_declarations() + source, [SKIP_HEADER_OPTION])
        for attempt in (1, 2):
            try:
                return self._built(source, options)
            except cl.Error as error:
                place = cache_folder()
                if place is not None and self._compiles_late and was_removed(place):
                    if attempt == 2:
                        raise driver_errors.removed(place) from error
                    has_space(place)  # creates the removed folder again
                # A second attempt helps only with a broken cache; the same source fails again.
                elif attempt == 2:
                    raise driver_errors.build_failure(source, str(error), self.info) from error
        raise AssertionError("unreachable")

    def _built(self, source: str, options: Sequence[str]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            try:
                return cl.Program(self._context, source).build(options=["-w", *options])
            except MemoryError as error:  # PoCL's compiler raised it and still holds a lock
                _leak(error.__traceback__)
                raise

    def _kernel(self, program: Any, name: str) -> Any:
        try:
            kernel = cl.Kernel(program, name)
            _ = kernel.num_args  # NVIDIA's driver notices an unknown name only here
        except cl.Error as error:
            raise driver_errors.unnamed(name, error) from error
        _forget_wrappers()
        return kernel

    @contextlib.contextmanager
    def _compiling(self) -> Iterator[None]:
        """Around everything that compiles: takes the cache's lock and measures `compiling`."""
        with contextlib.ExitStack() as stack:
            if self._compiles_late:  # other drivers lock their caches themselves
                self.finish()  # so that nobody has to wait for earlier work while we hold the lock
                place = cache_folder()
                if place is None or not has_space(place):
                    raise driver_errors.disk_full(place)
                stack.enter_context(locked(place / LOCK_NAME))
            began = time.process_time()  # of this process's threads, including the driver's
            yield
            self.compiling += time.process_time() - began


@cache
def _declarations() -> str:
    """Declarations to put before a source when the driver's own header is left out."""
    return resources.files("imgmlp.kernels").joinpath("declarations.cl").read_text("utf-8")


def _leak(thing: object) -> None:
    """Keep an object and all that it refers to alive even when the process exits.

    Releasing it would wait, with Python's own lock held, for a lock that is never released.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forget_wrappers() -> None:
    """Remove the sources of pyopencl's generated call wrappers from Python's linecache.

    pyopencl adds one for each kernel object, under a new name that it searches for linearly: with
    30,000 of them that takes 16 ms a kernel. This is done rarely, because a thread that prints a
    traceback at the same moment would miss the sources.
    """
    if len(linecache.cache) > MAX_CACHED_SOURCES:
        for name in list(linecache.cache):
            if name.startswith(WRAPPER_PREFIX):
                linecache.cache.pop(name, None)
