"""A sanitizer for emulated kernels: it finds accesses out of bounds, and data races.

An emulator passes each access of a kernel as arrays, with the loops whose iterations make it.
Iterations of these loops may run in any order, so none may write what another one reads or writes.
A barrier orders the lanes of a work-group, but not work-groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from imgmlp.engine.ir.dtype import Array, DType, f16, f32
from imgmlp.engine.ir.graph import Buffer

Memory = Mapping[Buffer, Array]  # the elements of each Buffer, flat
NO_STORE = -1


@dataclass(frozen=True)
class Loops:
    """The unordered loops around an access, outermost first.

    The first one is over work-groups, or over work-items if these cannot wait for one another.
    """

    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    collective: bool = False  # whether all lanes of a group make the access together

    def as_group(self) -> Loops:
        """The loops of an access that all lanes of a group make together."""
        return Loops(self.names[:1], self.sizes[:1], collective=True)

    def iterations(self, rank: int) -> Array:
        """A number for each iteration: an axis for each loop, then axes of 1 up to `rank`."""
        ones = [1] * (rank - len(self.sizes))
        return np.arange(math.prod(self.sizes)).reshape([*self.sizes, *ones])


@dataclass(frozen=True)
class _Access:
    """An access: the elements that were read or written, and the iteration of each, both [n]."""

    description: str
    loops: Loops
    barriers: int  # how many there were before it
    offsets: Array
    iterations: Array


class Sanitizer:
    """Checks all accesses during one launch of a kernel of some work-groups and work-items.

    Raises IndexError for an access out of bounds, and ValueError for a race or for Buffers that
    share bytes. Each error names the kernel, the access and the Buffer.
    """

    def __init__(
        self, kernel: str, memory: Memory, read: Sequence[Buffer], written: Sequence[Buffer],
        groups: int, items: int,
    ) -> None:  # fmt: skip
        self.kernel, self.memory = kernel, memory
        self.groups, self.items = groups, items
        self.barriers = 0
        self.reads: list[tuple[Buffer, _Access]] = []
        self.stores: dict[Buffer, list[_Access]] = {b: [] for b in written}
        # For each element: the number of the last store that wrote it, and the iteration.
        self.store_of = {b: np.full(b.size, NO_STORE) for b in written}
        self.writer_of = {b: np.full(b.size, NO_STORE) for b in written}
        for target, other in itertools.product(written, {*read, *written}):
            if target is not other and np.may_share_memory(memory[target], memory[other]):
                raise ValueError(f"{kernel}: {target!r} and {other!r} share bytes")

    def barrier(self) -> None:
        """Order the accesses of a group's lanes so far before all later ones."""
        self.barriers += 1

    def read(
        self, description: str, storage: Buffer, offsets: Array, mask: Array | None, loops: Loops
    ) -> Array:
        """Elements at offsets [*loops, ...], zero where not needed, as wide as registers."""
        if mask is not None:
            offsets, mask = np.broadcast_arrays(offsets, mask)
        taken = offsets.ravel() if mask is None else offsets[mask]
        self._check_bounds(description, storage, taken)
        if storage in self.stores:
            access = self._access(description, offsets, mask, loops)
            self._check_race(storage, access)
            self.reads.append((storage, access))
        if mask is None:
            values = np.asarray(self.memory[storage][offsets])
        else:
            values = np.zeros(offsets.shape, storage.dtype.np)
            values[mask] = self.memory[storage][taken]
        return values.astype(register_dtype(storage.dtype), copy=False)

    def write(
        self, description: str, storage: Buffer, offsets: Array, mask: Array | None,
        loops: Loops, values: Array,
    ) -> None:  # fmt: skip
        """Store one value for each iteration of the loops, where `mask` is true."""
        access = self._access(description, offsets, mask, loops)
        self._check_bounds(description, storage, access.offsets)
        self._check_race(storage, access)
        writer, store = self.writer_of[storage], self.store_of[storage]
        writer[access.offsets] = access.iterations
        twice = writer[access.offsets] != access.iterations
        self._refuse(twice, access.offsets, storage, f"{description} two iterations write")
        store[access.offsets] = len(self.stores[storage])
        self.stores[storage].append(access)
        shape = np.broadcast_shapes(offsets.shape, loops.iterations(offsets.ndim).shape)
        chosen = ... if mask is None else np.broadcast_to(mask, shape)
        self.memory[storage][access.offsets] = np.broadcast_to(values, shape)[chosen].ravel()

    def finish(self) -> None:
        """Check all reads against the stores that came later."""
        for storage, access in self.reads:
            self._check_race(storage, access)

    def _access(
        self, description: str, offsets: Array, mask: Array | None, loops: Loops
    ) -> _Access:
        iterations = loops.iterations(offsets.ndim)
        shape = np.broadcast_shapes(iterations.shape, offsets.shape)
        chosen = ... if mask is None else np.broadcast_to(mask, shape)
        flat = (np.broadcast_to(a, shape)[chosen].ravel() for a in (offsets, iterations))
        return _Access(description, loops, self.barriers, *flat)

    def _check_bounds(self, description: str, storage: Buffer, offsets: Array) -> None:
        wrong = offsets[(offsets < 0) | (offsets >= storage.size)]
        if wrong.size:
            raise IndexError(
                f"{self.kernel}: {description} touches element {wrong[0]} of {storage!r}, "
                f"which has {storage.size}"
            )

    def _check_race(self, storage: Buffer, access: _Access) -> None:
        """Raise ValueError if other iterations have written an element of this access."""
        store = self.store_of[storage][access.offsets]
        writer = self.writer_of[storage][access.offsets]
        for number in np.unique(store[store != NO_STORE]):
            other, both = self.stores[storage][number], store == number
            unordered = self._are_unordered(access, access.iterations[both], other, writer[both])
            why = f"{access.description} races with {other.description} for"
            self._refuse(unordered, access.offsets[both], storage, why)

    def _are_unordered(self, one: _Access, i: Array, two: _Access, j: Array) -> Array | bool:
        """Whether iterations i and j of two accesses are unordered."""
        pairs = zip(one.loops.names, two.loops.names, strict=False)
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        waited = one.barriers != two.barriers
        if not shared:  # all work-items make one of the accesses
            return (self.groups if waited else self.items) > 1
        if waited:
            shared = 1
        elif one.loops.collective != two.loops.collective:
            return True
        inner, other = (math.prod(t.loops.sizes[shared:]) for t in (one, two))
        unordered: Array = i // inner != j // other
        return unordered

    def _refuse(self, wrong: Array | bool, offsets: Array, storage: Buffer, why: str) -> None:
        if np.any(wrong):
            element = offsets[np.broadcast_to(wrong, offsets.shape)][0]
            raise ValueError(f"{self.kernel}: {why} element {element} of {storage!r}")


def register_dtype(dtype: DType) -> np.dtype[Any]:
    """The dtype of a value in a register: halves are computed in float, and rounded each time."""
    return np.dtype((f32 if dtype is f16 else dtype).np)
