"""Memory that notices what a kernel must not do: touch what is not there, or race.

An emulator hands over each access of a kernel as arrays, together with the loops whose
iterations it stands for. Iterations of one loop may run in any order, so none of them may
write what another one reads or writes. After a barrier only work-groups stay apart.
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
NOBODY = -1


@dataclass(frozen=True)
class Loops:
    """The loops without an order that an access stands in, outermost first; the first is
    that of work-groups, or of work-items where none can wait for another."""

    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    together: bool = False  # whether all lanes of a group take part in one access

    def of_group(self) -> Loops:
        """For what all lanes of a group do as one."""
        return Loops(self.names[:1], self.sizes[:1], together=True)

    def iterations(self, rank: int) -> Array:
        """A number for each: the loops' axes, then 1s up to `rank` axes."""
        ones = [1] * (rank - len(self.sizes))
        return np.arange(math.prod(self.sizes)).reshape([*self.sizes, *ones])


@dataclass(frozen=True)
class _Touch:
    """Elements that were read or written, and by which iteration each, [n]."""

    what: str
    loops: Loops
    barriers: int  # met before
    offsets: Array
    iterations: Array


class Sanitizer:
    """The Buffers during one launch of a kernel of so many work-groups and work-items.

    Raises IndexError for an access outside of a Buffer and ValueError for a race or for
    Buffers that share bytes; each names the kernel, the access and the Buffer.
    """

    def __init__(
        self, kernel: str, memory: Memory, read: Sequence[Buffer], written: Sequence[Buffer],
        groups: int, items: int,
    ) -> None:  # fmt: skip
        self.kernel, self.memory = kernel, memory
        self.groups, self.items = groups, items
        self.barriers = 0
        self.reads: list[tuple[Buffer, _Touch]] = []
        self.stores: dict[Buffer, list[_Touch]] = {b: [] for b in written}
        # of each element: the last store that wrote it, and the iteration
        self.store_of = {b: np.full(b.size, NOBODY) for b in written}
        self.writer_of = {b: np.full(b.size, NOBODY) for b in written}
        for target, other in itertools.product(written, {*read, *written}):
            if target is not other and np.may_share_memory(memory[target], memory[other]):
                raise ValueError(f"{kernel}: {target!r} and {other!r} share bytes")

    def barrier(self) -> None:
        """What a group's lanes did before is in order with what they do from now on."""
        self.barriers += 1

    def read(
        self, what: str, storage: Buffer, offsets: Array, needed: Array | None, loops: Loops
    ) -> Array:
        """Elements at offsets [*loops, ...], zero where not needed, as wide as registers."""
        if needed is not None:
            offsets, needed = np.broadcast_arrays(offsets, needed)
        taken = offsets.ravel() if needed is None else offsets[needed]
        self._inside(what, storage, taken)
        if storage in self.stores:
            touch = self._touch(what, offsets, needed, loops)
            self._alone(storage, touch)
            self.reads.append((storage, touch))
        if needed is None:
            found = np.asarray(self.memory[storage][offsets])
        else:
            found = np.zeros(offsets.shape, storage.dtype.np)
            found[needed] = self.memory[storage][taken]
        return found.astype(register(storage.dtype), copy=False)

    def write(
        self, what: str, storage: Buffer, offsets: Array, needed: Array | None,
        loops: Loops, values: Array,
    ) -> None:  # fmt: skip
        """Store one value for each iteration of the loops where it is needed."""
        touch = self._touch(what, offsets, needed, loops)
        self._inside(what, storage, touch.offsets)
        self._alone(storage, touch)
        writer, store = self.writer_of[storage], self.store_of[storage]
        writer[touch.offsets] = touch.iterations
        twice = writer[touch.offsets] != touch.iterations
        self._refuse(twice, touch.offsets, storage, f"{what} two iterations write")
        store[touch.offsets] = len(self.stores[storage])
        self.stores[storage].append(touch)
        shape = np.broadcast_shapes(offsets.shape, loops.iterations(offsets.ndim).shape)
        chosen = ... if needed is None else np.broadcast_to(needed, shape)
        self.memory[storage][touch.offsets] = np.broadcast_to(values, shape)[chosen].ravel()

    def finish(self) -> None:
        """Hold what was read against what was stored later."""
        for storage, touch in self.reads:
            self._alone(storage, touch)

    def _touch(self, what: str, offsets: Array, needed: Array | None, loops: Loops) -> _Touch:
        iterations = loops.iterations(offsets.ndim)
        shape = np.broadcast_shapes(iterations.shape, offsets.shape)
        chosen = ... if needed is None else np.broadcast_to(needed, shape)
        flat = (np.broadcast_to(a, shape)[chosen].ravel() for a in (offsets, iterations))
        return _Touch(what, loops, self.barriers, *flat)

    def _inside(self, what: str, storage: Buffer, offsets: Array) -> None:
        wrong = offsets[(offsets < 0) | (offsets >= storage.size)]
        if wrong.size:
            raise IndexError(
                f"{self.kernel}: {what} touches element {wrong[0]} of {storage!r}, "
                f"which has {storage.size}"
            )

    def _alone(self, storage: Buffer, touch: _Touch) -> None:
        """Raise ValueError if other iterations have written what one touches."""
        store = self.store_of[storage][touch.offsets]
        writer = self.writer_of[storage][touch.offsets]
        for number in np.unique(store[store != NOBODY]):
            other, both = self.stores[storage][number], store == number
            apart = self._apart(touch, touch.iterations[both], other, writer[both])
            why = f"{touch.what} races with {other.what} for"
            self._refuse(apart, touch.offsets[both], storage, why)

    def _apart(self, one: _Touch, i: Array, two: _Touch, j: Array) -> Array | bool:
        """Whether iterations i and j of two accesses are in no order."""
        pairs = zip(one.loops.names, two.loops.names, strict=False)
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        waited = one.barriers != two.barriers
        if not shared:  # one of them is done by everybody
            return (self.groups if waited else self.items) > 1
        if waited:
            shared = 1
        elif one.loops.together != two.loops.together:
            return True
        inner, other = (math.prod(t.loops.sizes[shared:]) for t in (one, two))
        apart: Array = i // inner != j // other
        return apart

    def _refuse(self, wrong: Array | bool, offsets: Array, storage: Buffer, why: str) -> None:
        if np.any(wrong):
            element = offsets[np.broadcast_to(wrong, offsets.shape)][0]
            raise ValueError(f"{self.kernel}: {why} element {element} of {storage!r}")


def register(dtype: DType) -> np.dtype[Any]:
    """What a value of this dtype is kept in: halves are computed in float, each result rounded."""
    return np.dtype((f32 if dtype is f16 else dtype).np)
