"""Layers, derived from Tensor operations only.

A layer holds its parameters as Tensors, lists them, and is called on a Tensor. Weights are
stored input-major, so that the rows a product reads lie side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeAlias

from imgmlp.engine.device.discover import AnyDevice
from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir.dtype import Array, DType, concrete, f16, f32, promote
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.creation import Seed
from imgmlp.engine.operations.elementwise import dtype_of
from imgmlp.engine.operations.operands import check_rows, hold_rows

P = ParamSpec("P")
OfArrays: TypeAlias = Callable[Concatenate[Tensor | Array, P], Tensor]


class Layer(Protocol):
    """Anything that can be called on a Tensor and lists its parameters."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def parameters(self) -> list[Tensor]: ...


def _tensor(x: Tensor | Array) -> Tensor:
    """What layers and functions take: an array as a Tensor, which goes where others are."""
    return x if isinstance(x, Tensor) else Tensor(x)


def _of_arrays(name: str, method: Callable[Concatenate[Tensor, P], Tensor]) -> OfArrays[P]:
    """A Tensor's method as a function of this module, of arrays too."""

    @wraps(method)
    def function(x: Tensor | Array, /, *args: P.args, **named: P.kwargs) -> Tensor:
        return method(_tensor(x), *args, **named)

    function.__module__, function.__name__, function.__qualname__ = __name__, name, name
    return function


# Functions of a Tensor that networks are made of; Sequential takes them beside layers.
sigmoid = _of_arrays("sigmoid", Tensor.sigmoid)
relu = _of_arrays("relu", Tensor.relu)
gelu = _of_arrays("gelu", Tensor.gelu)
softmax = _of_arrays("softmax", Tensor.softmax)
variance = _of_arrays("variance", Tensor.var)


def layer_norm(
    x: Tensor | Array, scale: Tensor | Array, shift: Tensor | Array, epsilon: float = 1e-5
) -> Tensor:
    """Mean 0 and variance 1 along the last axis, then scale and shift [features].

    Ba, Kiros and Hinton (2016). Of float16 it is computed in float32, as squares leave the range
    of float16 early, and rounded once. Raises ValueError if features differ.
    """
    x, scale, shift = map(_tensor, (x, scale, shift))
    if not x.shape[-1:] == scale.shape == shift.shape:
        shapes = f"scale {scale.shape} and shift {shift.shape}"
        raise misuse(ValueError, f"layer_norm: {shapes} do not fit the last axis of {x.shape}")
    kind = _common_dtype(x, scale, shift)
    x, scale, shift = map(_wide, (x, scale, shift))
    spread = (x.variance(-1, keepdims=True) + epsilon).sqrt()
    return _rounded((x - x.mean(-1, keepdims=True)) / spread * scale + shift, kind)


def _common_dtype(*operands: Tensor) -> DType:
    return concrete(promote(*(dtype_of("nn", t) for t in operands)))


def _wide(x: Tensor) -> Tensor:
    """Halves as f32; all else as it is."""
    return x.cast(f32) if x.dtype is f16 else x


def _rounded(x: Tensor, kind: DType) -> Tensor:
    """What was computed in f32 in the dtype of its operands, where these are halves."""
    return x.cast(f16) if kind is f16 else x


class Linear:
    """x [..., inputs] @ weight [inputs, outputs] + bias [outputs]; `random` draws both.

    Raises TypeError for a weight that is none, such as a number of inputs, ValueError for one
    without just two axes.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        shape = getattr(weight, "shape", None)
        if shape is None:
            advice = "nn.Linear.random(inputs, outputs, seed, device) draws one"
            raise misuse(TypeError, f"Linear: takes a weight, not {weight!r}; {advice}")
        if len(shape) != 2:
            raise misuse(ValueError, f"Linear: the weight must be [inputs, outputs], not {shape}")
        self.weight, self.bias = weight, bias

    @staticmethod
    def random(
        inputs: int, outputs: int, seed: Seed, device: AnyDevice, bias: bool = True
    ) -> Linear:
        """Gaussian weights of variance 1 / inputs, drawn on the device; a bias of zeros.

        A seed of several numbers, as (seed, part), has the streams of a seed's parts apart.

        Raises ValueError for no inputs.
        """
        if inputs < 1:
            raise misuse(ValueError, f"Linear: needs at least one input, not {inputs}")
        draw = Tensor.normal((inputs, outputs), seed, variance=1 / inputs, device=device)
        zeros = Tensor.zeros(outputs, device=device).realize() if bias else None
        return Linear(draw.realize(), zeros)

    def __call__(self, x: Tensor | Array) -> Tensor:
        """Raises ValueError for a Tensor without axes, or of other features."""
        x = _tensor(x)
        if not x.shape:
            text = "Linear: needs [..., inputs], not a Tensor of shape ()"
            raise misuse(ValueError, f"{text}; x.reshape(1) has an axis")
        rows = x.reshape(-1, x.shape[-1]) @ self.weight  # [rows, outputs]
        y = rows if self.bias is None else rows + self.bias
        return y.reshape(*x.shape[:-1], self.weight.shape[-1])

    def parameters(self) -> list[Tensor]:
        """weight [inputs, outputs], and bias [outputs] if there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]


class LayerNorm:
    """`layer_norm` with a scale and a shift to be trained, [features] each."""

    def __init__(self, features: int, device: AnyDevice, epsilon: float = 1e-5) -> None:
        self.scale = Tensor.ones(features, device=device).realize()
        self.shift = Tensor.zeros(features, device=device).realize()
        self.epsilon = epsilon

    def __call__(self, x: Tensor | Array) -> Tensor:
        return layer_norm(x, self.scale, self.shift, self.epsilon)

    def parameters(self) -> list[Tensor]:
        """scale and shift, [features] each."""
        return [self.scale, self.shift]


class Sequential:
    """Layers, or plain functions of a Tensor, applied one after the other.

    Raises TypeError for what cannot be called, such as a list of them.
    """

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        for layer in layers:
            if not callable(layer):
                text = f"takes layers and functions one by one, not {type(layer).__name__}"
                raise misuse(TypeError, f"Sequential: {text}; *layers spreads a list")
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def parameters(self) -> list[Tensor]:
        """Those of all layers, in order; functions have none."""
        return [p for layer in self.layers for p in getattr(layer, "parameters", list)()]


class SelfAttention:
    """Scaled dot-product attention with several heads, Vaswani et al. (2017).

    [batch, time, features] -> the same; features are divided among the heads.
    """

    def __init__(self, features: int, heads: int, seed: Seed, device: AnyDevice) -> None:
        if heads < 1 or features % heads:
            raise misuse(ValueError, f"{features} features cannot be divided among {heads} heads")
        self.heads = heads
        self.into = Linear.random(features, 3 * features, _part(seed, 0), device)
        self.out = Linear.random(features, features, _part(seed, 1), device)

    def __call__(self, x: Tensor | Array) -> Tensor:
        """Raises ValueError for other axes than batch, time and features."""
        x = _tensor(x)
        if len(x.shape) != 3:
            text = f"needs [batch, time, features], not {x.shape}"
            raise misuse(ValueError, f"SelfAttention: {text}; x.unsqueeze(0) is a batch of one")
        batch, time, features = x.shape
        size = features // self.heads
        split = self.into(x).reshape(batch, time, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        query, key, value = (split[i] for i in range(3))  # [batch, heads, time, size]
        joined = attention(query, key, value).permute(0, 2, 1, 3).reshape(batch, time, features)
        return self.out(joined)

    def parameters(self) -> list[Tensor]:
        """Weight and bias of the projection to queries, keys and values, then of the last one."""
        return [*self.into.parameters(), *self.out.parameters()]


class TransformerEncoder:
    """One encoder layer: attention and a two-layer network, each normalised after adding.

    [batch, time, features] -> the same. `activation` stands between the two layers.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        hidden: int,
        seed: Seed,
        device: AnyDevice,
        activation: Callable[[Tensor], Tensor] = relu,
    ) -> None:
        self.activation = activation
        self.attention = SelfAttention(features, heads, seed, device)
        self.first = Linear.random(features, hidden, _part(seed, 2), device)
        self.second = Linear.random(hidden, features, _part(seed, 3), device)
        self.norms = LayerNorm(features, device), LayerNorm(features, device)

    def __call__(self, x: Tensor | Array) -> Tensor:
        x = _tensor(x)
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.second(self.activation(self.first(x))))

    def parameters(self) -> list[Tensor]:
        """Those of attention, of the two layers, and of both normalisations."""
        layers = (self.attention, self.first, self.second, *self.norms)
        return [p for layer in layers for p in layer.parameters()]


def _part(seed: Seed, number: int) -> Seed:
    """The seed of one part of a layer: not that of the next layer, whose seed may be the next."""
    return (*seed, number) if isinstance(seed, tuple) else (seed, number)


def attention(
    query: Tensor | Array, key: Tensor | Array, value: Tensor | Array,
    mask: Tensor | Array | None = None, causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """softmax(query @ key^T scale) @ value: [..., time, size] each, `scale` 1 / sqrt(size).

    Where a bool mask [..., time of query, time of key] is false, nobody looks; a float one is
    added. With `causal` no place looks at later ones. A query that may look nowhere has no softmax:
    NaN, where a float mask of -1e9 instead gives the mean of all values. Of float16 it is computed
    in float32, which has room for all sums of products, and rounded once. Vaswani et al. (2017).
    """
    query, key, value = map(_tensor, (query, key, value))
    kind = _common_dtype(query, key, value)
    query, key, value = map(_wide, (query, key, value))
    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    scores = query @ key.transpose() * scale
    if causal:
        seen = Tensor.arange(key.shape[-2]) <= Tensor.arange(query.shape[-2]).reshape(-1, 1)
        scores = Tensor.where(seen, scores, -math.inf)
    if mask is not None:
        mask = _tensor(mask)
        if mask.dtype.is_float:
            kind = concrete(promote(kind, mask.dtype))
            scores = scores + _wide(mask)
        else:
            scores = Tensor.where(mask, scores, -math.inf)
    return _rounded(scores.softmax() @ value, kind)


def nll_loss(logarithms: Tensor | Array, target: Tensor | Array) -> Tensor:
    """Mean of -logarithms[target]: [rows, classes] and int [rows] -> one number.

    Targets must lie in [0, classes): OutOfBoundsError if the host knows of one that does not.
    Raises ValueError for other shapes, TypeError for a target that is not int.
    """
    return _nll_loss("nll_loss", _tensor(logarithms), _tensor(target))


def _nll_loss(operation: str, logarithms: Tensor, target: Tensor) -> Tensor:
    if len(logarithms.shape) != 2 or target.shape != logarithms.shape[:1]:
        shapes = f"not {logarithms.shape} and {target.shape}"
        raise misuse(
            ValueError, f"{operation}: needs [rows, classes] and [rows], {shapes}; reshape them"
        )
    if not target.dtype.is_int:
        raise misuse(TypeError, f"{operation}: the target must be int, not {target.dtype.name}")
    asked = check_rows(logarithms.shape, target.node, 1)
    rows, classes = logarithms.shape
    chosen = Tensor.arange(classes).reshape(1, classes).eq(target.reshape(rows, 1))
    held = Tensor(hold_rows(asked, chosen.node), chosen.device)
    picked = Tensor.where(held, logarithms, 0.0)
    return -picked.sum(1).mean()


def cross_entropy(logits: Tensor | Array, target: Tensor | Array) -> Tensor:
    """Mean of -log softmax(logits)[target]: [rows, classes] and int [rows] -> one number.

    A float target [rows, classes] is the share of each class. Raises as `nll_loss`.
    """
    logits, target = _tensor(logits), _tensor(target)
    if target.shape == logits.shape and target.dtype.is_float:
        return -(logits.log_softmax() * target).sum(1).mean()
    return _nll_loss("cross_entropy", logits.log_softmax(), target)


def slices(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Views of one flat Tensor as Tensors of these shapes, in order.

    One flat Tensor of all parameters lets the optimizer run as a single kernel. Raises
    ValueError if the shapes do not add up to its size.
    """
    sizes = [math.prod(s) for s in shapes]
    if flat.shape != (sum(sizes),):
        raise misuse(
            ValueError, f"slices: shapes of {sum(sizes)} elements do not fill {flat.shape}"
        )
    found, begin = [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        found.append(flat.shrink((begin, begin + size)).reshape(*shape))
        begin += size
    return found
