"""What stands in the braces of a template for a line of a random graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imgmlp.engine import dtype

if TYPE_CHECKING:
    from random_graphs import Maker


class Unfit(Exception):
    """This cannot be done with that value."""


def fit(x: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """A value in another shape: its elements again and again, as many as there is room for."""
    if shape == wanted:
        return x
    size, room = math.prod(shape), math.prod(wanted)
    if not size:
        raise Unfit
    again = -(-room // size)
    repeated = f".repeat({again})" if again > 1 else ""
    cut = f"[:{room}]" if size * again > room else ""
    return f"{x}.flatten(){repeated}{cut}.reshape({', '.join(map(str, wanted))})"


class Filled(dict[str, str]):
    """What stands in a template's braces, drawn when it is asked for; then it stays."""

    def __init__(self, maker: Maker, x: str, pool: Sequence[str]) -> None:
        super().__init__(x=x)
        self.maker, self.pool, self.array = maker, pool, maker.arrays[x]
        self.operands = [x]

    def __missing__(self, key: str) -> str:
        if key.startswith("fit_"):
            found = self.fit(tuple(int(n) for n in key.split("_")[1:]))
        else:
            found = str(getattr(self, f"_{key}")())
        self[key] = found
        return found

    def fit(self, shape: tuple[int, ...]) -> str:
        x = self.maker.pick(self.pool, "f")
        return fit(x, self.maker.arrays[x].shape, shape)

    def _operand(self, kinds: str) -> str:
        """A value that broadcasts with what there is."""

        def fits(name: str) -> bool:
            try:
                np.broadcast_shapes(*(self.maker.arrays[n].shape for n in [*self.operands, name]))
            except ValueError:
                return False
            return True

        self.operands.append(self.maker.pick(self.pool, kinds, fits))
        return self.operands[-1]

    def _y(self) -> str:
        return self._operand("fi")

    def _z(self) -> str:
        return self._operand("fi")

    def _j(self) -> str:
        return self._operand("i")

    def _b(self) -> str:
        found = self._operand("b")
        self.operands.pop()
        return found

    def _P(self) -> str:
        kinds = {self.maker.tensors[n].dtype for n in self.operands}
        return repr(dtype.concrete(dtype.promote(*kinds)).name)

    def _another(self, shape: tuple[int, ...]) -> str:
        x = self.maker.pick(self.pool, "fi")
        self.operands.append(x)
        return fit(x, self.maker.arrays[x].shape, shape)

    def _other(self) -> str:
        """To stand beside x along `axis`."""
        axis = int(self["axis"]) % self.array.ndim
        n = 1 + self.maker.below(3)
        return self._another(tuple(n if a == axis else m for a, m in enumerate(self.array.shape)))

    def _same(self) -> str:
        return self._another(self.array.shape)

    def _matrix(self) -> str:
        if self.array.ndim != 2:
            raise Unfit
        return self["x"]

    def _right(self) -> str:
        return self.fit((self.array.shape[-1], 1 + self.maker.below(7)))

    def _c(self) -> float:
        return round(float(self.maker.rng.uniform(-3, 3)), 2)

    def _c2(self) -> int:
        if self.array.ndim < 2:
            raise Unfit
        return self.maker.below(5) - 2

    def _k(self) -> int:
        return self.maker.below(4)

    def _keep(self) -> bool:
        return bool(self.maker.below(2))

    def _axis(self) -> int:
        return int(self.maker.one_of(range(-self.array.ndim, self.array.ndim)))

    _axis2 = _axis

    def _axes(self) -> str:
        rank = self.array.ndim
        if not rank or not self.maker.below(3):
            return "None"
        chosen = self.maker.rng.permutation(rank)[: 1 + self.maker.below(rank)]
        return str(tuple(int(a) for a in chosen)) if len(chosen) > 1 else str(chosen[0])

    def _of_size(self, fits: Callable[[int], bool]) -> int:
        return int(self.maker.one_of([a for a, n in enumerate(self.array.shape) if fits(n)]))

    def _shortaxis(self) -> int:
        return self._of_size(lambda n: n <= 7)

    def _longaxis(self) -> int:
        return self._of_size(lambda n: n > 1)

    def _at(self) -> int:
        return 1 + self.maker.below(self.array.shape[int(self["longaxis"])] - 1)

    def _n(self) -> int:
        if not self.array.ndim or not 0 < self.array.shape[0] < 128:  # to which i8 counts
            raise Unfit
        return self.array.shape[0]

    def _shape(self) -> str:
        size, found = self.array.size, []
        for p in self.maker.rng.permutation([2, 3, 5, 7, 11, 17]):
            if size % p == 0 and self.maker.below(3):
                found.append(int(p))
                size //= int(p)
        found.insert(self.maker.below(len(found) + 1), size)
        if self.maker.below(2):
            found[self.maker.below(len(found))] = -1
        return ", ".join(map(str, found))

    def _order(self) -> str:
        order = iter(self.maker.rng.permutation(self.array.ndim))
        return self._each(lambda n: next(order))

    def _wider(self) -> str:
        shape = [n if n > 1 else self.maker.one_of((1, 3)) for n in self.array.shape]
        return str((*([2] if self.maker.below(2) else []), *shape))

    def _expanded(self) -> str:
        shape = list(np.expand_dims(self.array, int(self["axis"])).shape)
        shape[int(self["axis"])] = 3
        return ", ".join(map(str, shape))

    def _each(self, make: Callable[[int], Any]) -> str:
        if not self.array.ndim:
            raise Unfit
        return ", ".join(str(make(n)) for n in self.array.shape)

    def _pads(self) -> str:
        return self._each(lambda n: (self.maker.below(3), self.maker.below(3)))

    def _box(self) -> str:
        def span(n: int) -> tuple[int, int]:
            begin = self.maker.below(n)
            return begin, begin + 1 + self.maker.below(n - begin)

        return self._each(span)

    def _steps(self) -> str:
        return self._each(lambda n: self.maker.one_of((1, 1, -1, 2, -2, 3)))

    def _key(self) -> str:
        keys = []
        for n in self.array.shape:
            begin = self.maker.one_of(("", self.maker.below(n), self.maker.below(n) - n))
            step = self.maker.one_of(("", -1, 2, -3))
            keys.append(
                self.maker.one_of(
                    (f"{begin}::{step}", ":", self.maker.below(n), f":{n}:{step or 1}")
                )
            )
        keys.insert(self.maker.below(len(keys) + 1), self.maker.one_of(("None", "...")))
        return ", ".join(map(str, keys))

    def _ints(self) -> str:
        n = int(self["n"])
        return str([self.maker.below(2 * n) - n for _ in range(1 + self.maker.below(5))])

    def _mask(self) -> str:
        if not self.array.ndim:
            raise Unfit
        found = self.maker.rng.integers(0, 2, self.array.shape[-1]).astype(bool)
        found[self.maker.below(len(found))] = True
        return str(found.tolist())

    def _lines(self) -> str:
        axis = int(self["axis"]) % self.array.ndim
        if not self.array.size:
            raise Unfit
        shape = [
            1 + self.maker.below(3) if a == axis else n for a, n in enumerate(self.array.shape)
        ]
        return str(self.maker.rng.integers(0, self.array.shape[axis], shape).tolist())
