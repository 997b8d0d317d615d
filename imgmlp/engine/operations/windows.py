"""Sliding windows over the last two axes: convolution and pooling; also interpolation and einsum.

A tap is a shifted slice of the padded Tensor: the elements that all windows have at one position.
Every operation combines its taps. Max pooling takes their maximum and average pooling their mean. A
convolution with few weights adds them by weights (`weighted_sums`, which the latent codec uses as
well). A convolution with many weights concatenates its taps into a matrix and multiplies that by
the weights. Names and meaning are PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add
from string import ascii_letters
from typing import Self, TypeVar

import numpy as np

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.graph import Buffer, Node
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.autograd import gradient
from imgmlp.engine.operations.elementwise import computed_in_f32, dtype_of, node_of
from imgmlp.engine.operations.operands import check_shape
from imgmlp.engine.operations.scans import Scans

W = TypeVar("W", bound="Windows")
Pair = int | tuple[int, int]
# Weights up to which a convolution of a single picture is computed as sums of taps. More weights
# take long to compile. For several pictures, or larger strides, matrix products are as fast.
MAX_WEIGHTS_AS_TAPS = 512
TAPS_PER_PARTIAL_SUM = 32  # taps that are added one after the other to a partial sum


def _pair(value: Pair, name: str, least: int = 1) -> tuple[int, int]:
    """An argument as (along the height, along the width).

    Raises ValueError unless it is one integer, or two, of at least `least`.
    """
    pair = value if isinstance(value, Sequence) else (value, value)
    if len(pair) == 2 and all(isinstance(v, int | np.integer) and v >= least for v in pair):
        return int(pair[0]), int(pair[1])
    text = f"{name} is {value!r}, not one or two whole numbers from {least}"
    raise misuse(ValueError, f"windows: {text}")


def _windows_reach_inside(size: int, count: int, stride: int, padding: int, dilation: int) -> bool:
    """Whether each window along an axis has an element that is not padding."""
    reach = np.arange(count) * dilation
    places = np.arange(-padding, size + padding - reach[-1], stride)[:, None] + reach
    return bool(((places >= 0) & (places < size)).any(1).all())


class Windows(Scans):
    """Scans and all before them, and sliding windows over pictures [..., height, width]."""

    __slots__ = ()

    def _taps(self, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Iterator[Self]:
        """For each position in a window the elements of all windows there [..., rows, columns]."""
        if len(self.shape) < 2:
            raise misuse(ValueError, f"windows: shape {self.shape} has no height and width")
        (down, across), size = _pair(padding, "padding", 0), self.shape[-2:]
        outer = ((0, 0),) * (len(self.shape) - 2)
        padded = self.pad(*outer, (down, down), (across, across))
        kernel_size, spacing = _pair(kernel, "kernel"), _pair(dilation, "dilation")
        pairs = zip(padded.shape[-2:], kernel_size, spacing, _pair(stride, "stride"), strict=True)
        spans = [
            [slice(k * d, n - (count - 1 - k) * d, step) for k in range(count)]
            for n, count, d, step in pairs
        ]
        if any(s.stop <= s.start for axis in spans for s in axis):
            raise misuse(ValueError, f"windows: {kernel} elements do not fit into {size}")
        return (padded[(..., y, x)] for y in spans[0] for x in spans[1])

    @classmethod
    def weighted_sums(cls, taps: Sequence[Self], weights: Self, axis: int = 0) -> Self:
        """Sums of taps with weights [sums, taps], concatenated along an axis.

        The taps have size 1 along this axis. The sums are computed one after the other, so that a
        kernel that computes all of them reads each tap once.
        """
        sums = []
        for row in weights:
            terms = [t * w for t, w in zip(taps, row, strict=True)]
            parts = (
                terms[i : i + TAPS_PER_PARTIAL_SUM]
                for i in range(0, len(terms), TAPS_PER_PARTIAL_SUM)
            )
            sums.append(reduce(add, [reduce(add, part) for part in parts]))
        return cls.concat(sums, axis)

    def conv2d(
        self, weight: Self | Array, bias: Self | Array | None = None, stride: Pair = 1,
        padding: Pair = 0, dilation: Pair = 1, groups: int = 1,
    ) -> Self:  # fmt: skip
        """The cross-correlation with weights [outputs, channels / groups, rows, columns].

        [batch, channels, height, width] -> [batch, outputs, rows, columns].
        """
        weight = self._as_tensor("conv2d", weight)
        batch, channels, *_ = self._check_rank_4("conv2d", weight)
        outputs, inputs, *kernel = weight.shape
        if groups < 1 or channels != inputs * groups or outputs % groups:
            text = f"{channels} channels, weights {weight.shape} and {groups} groups do not fit"
            raise misuse(ValueError, f"conv2d: {text}")
        taps = list(self._taps((kernel[0], kernel[1]), stride, padding, dilation))
        rows, columns = taps[0].shape[-2:]
        windows = self.stack(taps, 2).reshape(batch, groups, inputs * len(taps), rows * columns)
        factors = weight.reshape(1, groups, outputs // groups, inputs * len(taps))
        spacing, edges = _pair(dilation, "dilation"), _pair(padding, "padding", 0)
        back_padding = [
            d * (k - 1) - edge for k, d, edge in zip(kernel, spacing, edges, strict=True)
        ]
        can_sum_taps = batch == 1 and _pair(stride, "stride") == (1, 1) and min(back_padding) >= 0
        if can_sum_taps and 0 < weight.node.size <= MAX_WEIGHTS_AS_TAPS:
            vjp = self._convolution_vjp(
                windows, weight, (back_padding[0], back_padding[1]), dilation, groups
            )
            result = self._with_vjp(self._sum_of_taps(taps, factors[0]), weight, vjp=vjp)
        else:
            result = (factors @ windows).reshape(batch, outputs, rows, columns)
        return result if bias is None else result._add_bias("conv2d", bias)

    def _sum_of_taps(self, taps: Sequence[Self], factors: Self) -> Self:
        """The product of factors and windows, computed tap by tap; halves are rounded once."""
        groups, _, count = factors.shape
        dtype = dt.promote(self.dtype, factors.dtype, dt.weak_float)
        taps_f32, inputs = [t.cast(dt.f32) for t in taps], count // len(taps)
        sums = []
        for g in range(groups):
            group_taps = [
                t[:, c : c + 1] for c in range(g * inputs, (g + 1) * inputs) for t in taps_f32
            ]
            sums.append(self.weighted_sums(group_taps, factors[g].cast(dt.f32), 1))
        return self.concat(sums, 1).cast(dt.concrete(dtype))

    def _convolution_vjp(
        self,
        windows: Self,
        weight: Self,
        back_padding: tuple[int, int],
        dilation: Pair,
        groups: int,
    ) -> Callable[..., tuple[Node, Node]]:
        """The gradient rule of a convolution with stride 1.

        The gradient with respect to the input is a convolution with the flipped weights.
        """
        outputs, inputs, *kernel = weight.shape

        def vjp(g: Node, ans: Node, *_: Node) -> tuple[Node, Node]:
            gradient_above = self._wrap(g).contiguous()  # otherwise each tap would compute it
            lines = gradient_above.reshape(groups, outputs // groups, windows.shape[-1])
            by_weight = (lines @ windows[0].transpose()).reshape(*weight.shape)
            flipped = weight.flip(2, 3).reshape(groups, -1, inputs, *kernel).transpose(1, 2)
            flipped = flipped.reshape(groups * inputs, -1, *kernel)
            by_x = gradient_above.conv2d(flipped, None, 1, back_padding, dilation, groups)
            return by_x.cast(self.dtype).node, by_weight.cast(weight.dtype).node

        return vjp

    def conv_transpose2d(
        self, weight: Self | Array, bias: Self | Array | None = None, stride: Pair = 1,
        padding: Pair = 0, output_padding: Pair = 0, dilation: Pair = 1, groups: int = 1,
    ) -> Self:  # fmt: skip
        """The transposed convolution: the gradient of `conv2d` with respect to its input.

        Each element of the input is multiplied by the weights [channels, outputs / groups, rows,
        columns] and added to a window of the output.
        """
        name = "conv_transpose2d"
        weight = self._as_tensor(name, weight)
        batch, _, *size = self._check_rank_4(name, weight)
        steps, paddings = _pair(stride, "stride"), _pair(padding, "padding", 0)
        extra, spacing = _pair(output_padding, "output_padding", 0), _pair(dilation, "dilation")
        pairs = zip(size, weight.shape[-2:], steps, paddings, extra, spacing, strict=True)
        sizes = ((n - 1) * s - 2 * e + m + d * (k - 1) + 1 for n, k, s, e, m, d in pairs)
        shape = check_shape(name, (batch, weight.shape[1] * groups, *sizes))
        source = self._wrap(
            graph.buffer(Buffer(shape, self._as_float().dtype))
        )  # read by no gradient
        forward = source.conv2d(weight, None, stride, padding, dilation, groups)
        if forward.shape != self.shape:
            raise misuse(ValueError, f"{name}: {self.shape}, {weight.shape} do not fit")
        weighted = forward * self
        (node,) = gradient(weighted.sum().node, [source.node])
        transposed = weighted._wrap(node)
        return transposed if bias is None else transposed._add_bias(name, bias)

    def _add_bias(self, operation: str, bias: Self | Array) -> Self:
        """[batch, outputs, rows, columns] plus a bias for each output."""
        bias = self._as_tensor(operation, bias)
        if bias.shape != self.shape[1:2]:
            text = f"a bias of shape {bias.shape} does not fit {self.shape[1]} outputs"
            raise misuse(ValueError, f"{operation}: {text}")
        return self + bias.reshape(-1, 1, 1)

    def _as_tensor(self, operation: str, value: Self | Array) -> Self:
        """An operand as a Tensor. Raises TypeError for anything but Tensors and arrays."""
        dtype_of(operation, value)
        return value if isinstance(value, type(self)) else self._wrap(node_of(value))

    def _check_rank_4(self, operation: str, weight: Self) -> tuple[int, ...]:
        if len(self.shape) != 4 or len(weight.shape) != 4:
            text = f"not {self.shape} and weights {weight.shape}"
            raise misuse(ValueError, f"{operation}: needs 4 axes, from [batch, channels], {text}")
        return self.shape

    def max_pool2d(
        self, kernel: Pair, stride: Pair | None = None, padding: Pair = 0, dilation: Pair = 1
    ) -> Self:
        """The largest element of each window. The default stride is the size of the window."""
        step = kernel if stride is None else stride
        taps = list(self._taps(kernel, step, padding, dilation))
        if any(paddings := _pair(padding, "padding", 0)):
            kernel_size, spacing = _pair(kernel, "kernel"), _pair(dilation, "dilation")
            axes = zip(
                self.shape[-2:], kernel_size, _pair(step, "stride"), paddings, spacing, strict=True
            )
            if not all(_windows_reach_inside(*axis) for axis in axes):
                text = f"windows of {kernel} may see nothing but a padding of {padding}"
                raise misuse(ValueError, f"max_pool2d: {text}")
            ones = self._wrap(graph.const(1, dt.i32, self.shape))
            inside = list(ones._taps(kernel, step, padding, dilation))
            lowest = self._wrap(graph.const(self.dtype.min, self.dtype))
            taps = [self.where(m > 0, t, lowest) for t, m in zip(taps, inside, strict=True)]
        return reduce(type(self).maximum, taps)

    @computed_in_f32
    def avg_pool2d(self, kernel: Pair, stride: Pair | None = None, padding: Pair = 0) -> Self:
        """The mean of each window, including zeros of the padding."""
        taps = list(self._taps(kernel, kernel if stride is None else stride, padding, 1))
        return reduce(add, taps) * (1 / len(taps))

    def interpolate(self, size: tuple[int, int], mode: str = "nearest") -> Self:
        """Resampled to another height and width by the nearest pixel, or linearly.

        "linear" interpolates between the centres of pixels, and gives floats.
        """
        if mode not in ("nearest", "linear"):
            raise misuse(ValueError, f"interpolate: mode is {mode!r}; use 'nearest' or 'linear'")
        before, after = self.shape[-2:], _pair(size, "size", 0)
        if len(before) < 2 or (min(before) == 0 < max(after)):
            raise misuse(ValueError, f"interpolate: {self.shape} has no pixels to make {size} of")
        result = self if mode == "nearest" else self.cast(dt.f32)
        for axis, old, new in zip((-1, -2), before[::-1], after[::-1], strict=True):
            if mode == "nearest":
                result = result.take(np.arange(new) * old // new, axis)
                continue
            place = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
            low, high = np.floor(place).astype(int), np.ceil(place).astype(int)
            # At the centre of a pixel, low and high are this pixel, with a weight of 0.5 each. With
            # weights of 1 and 0 an infinite pixel would become NaN.
            weight = np.where(low < high, place - low, 0.5).reshape(-1, *(1,) * (-1 - axis))
            weight = weight.astype(np.float32)
            result = result.take(low, axis) * (1 - weight) + result.take(high, axis) * weight
        return result.cast(dt.f16) if mode != "nearest" and self.dtype is dt.f16 else result

    # --- sums of products ---

    @classmethod
    def einsum(cls, formula: str, *operands: Self | Array) -> Self:
        """NumPy's einsum: products, summed over the letters that the result does not have.

        "ij,jk->ik" is a matrix product; "...i->..." sums the last axis of any shape. Operands are
        multiplied from left to right.
        """
        for one in operands:
            dtype_of("einsum", one)
        factors = [o if isinstance(o, cls) else cls(node_of(o), None) for o in operands]
        formula = _expand_ellipsis(formula.replace(" ", ""), factors)
        texts, _, result = formula.partition("->")
        names = texts.split(",")
        if {*texts, *result} - {*ascii_letters, ","}:
            raise misuse(ValueError, f"einsum: {formula!r} has other things than letters")
        sizes = dict.fromkeys("".join(names), 1)
        for name, t in zip(names, factors, strict=True):
            axis_sizes = dict(zip(name, t.shape, strict=False))
            longer_axes = {c: n for c, n in axis_sizes.items() if n != 1}
            fits = all(sizes[c] in (1, n) for c, n in longer_axes.items())
            if not fits or tuple(map(axis_sizes.get, name)) != t.shape:
                raise misuse(ValueError, f"einsum: {name!r} does not fit shape {t.shape}")
            sizes |= longer_axes
        if len(set(result)) < len(result) or not set(result) <= sizes.keys():
            raise misuse(ValueError, f"einsum: {result!r} has a letter twice, or a new one")
        pending = [
            t.broadcast_to([sizes[c] for c in n])._diagonals(n)
            for n, t in zip(names, factors, strict=True)
        ]
        name, product = pending.pop(0)
        while pending:
            other, factor = pending.pop(0)
            needed = set(result).union(*(n for n, _ in pending))
            name, product = _contract(name, product, other, factor, needed, sizes)
        summed = [i for i, c in enumerate(name) if c not in result]
        product, name = product.sum(summed), "".join(c for c in name if c in result)
        return product.permute(*(name.index(c) for c in result))

    def _diagonals(self, name: str) -> tuple[str, Self]:
        """The diagonal of the two axes of each repeated letter, and the remaining letters."""
        tensor = self
        while twice := [c for c in name if name.count(c) > 1]:
            a, b = name.index(twice[0]), name.rindex(twice[0])
            rest = [i for i in range(len(name)) if i not in (a, b)]
            flat = tensor.permute(*rest, a, b).flatten(len(rest))
            tensor = flat[(..., slice(None, None, tensor.shape[a] + 1))]
            name = "".join(name[i] for i in rest) + twice[0]
        return name, tensor


def _expand_ellipsis(formula: str, operands: Sequence[W]) -> str:
    """A formula with an explicit result, and with letters instead of each `...`.

    A `...` of fewer axes has the last of these letters.
    """
    texts, arrow, result = formula.partition("->")
    names = texts.split(",")
    if len(names) != len(operands):
        raise misuse(ValueError, f"einsum: {formula!r} does not fit {len(operands)} operands")
    pairs = zip(names, operands, strict=True)
    counts = [len(t.shape) - len(n) + 3 if "..." in n else 0 for n, t in pairs]
    max_axes = max(0, *counts)
    letters = "".join(c for c in ascii_letters if c not in formula)[:max_axes]
    if not arrow:
        result = "..." + "".join(sorted(c for c in {*texts} - {*".,"} if texts.count(c) == 1))
    if letters and "..." not in result:
        raise misuse(ValueError, f"einsum: the result of {formula!r} lacks ..., which has axes")
    parts = (
        n.replace("...", letters[max_axes - m :], 1) for n, m in zip(names, counts, strict=True)
    )
    return ",".join(parts) + "->" + result.replace("...", letters, 1)


def _contract(
    name: str, x: W, other: str, y: W, needed: set[str], sizes: dict[str, int]
) -> tuple[str, W]:
    """The product of two operands, summed over the letters that are not `needed` later."""
    both = [c for c in name if c in other]
    batch, inner = [c for c in both if c in needed], [c for c in both if c not in needed]
    left, right = ([c for c in n if c not in both] for n in (name, other))

    def shaped(t: W, text: str, *groups: list[str]) -> W:
        moved = t.permute(*(text.index(c) for group in groups for c in group))
        return moved.reshape(*(math.prod(sizes[c] for c in group) for group in groups))

    if inner:
        product = shaped(x, name, batch, left, inner) @ shaped(y, other, batch, inner, right)
    else:
        product = shaped(x, name, batch, left, []) * shaped(y, other, batch, [], right)
    letters = [*batch, *left, *right]
    return "".join(letters), product.reshape(*(sizes[c] for c in letters))
