"""Neural network layers and losses, built from Tensor operations only.

A layer is called on a Tensor and holds its parameters as Tensors, which `parameters()` lists.
Weights are stored as [inputs, outputs], so that `x @ weight` reads contiguous rows.
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
from imgmlp.engine.operations.operands import bounded_choice, check_index_bounds

P = ParamSpec("P")
TensorFunction: TypeAlias = Callable[Concatenate[Tensor | Array, P], Tensor]


class Layer(Protocol):
    """Anything that can be called on a Tensor and lists its parameters."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def parameters(self) -> list[Tensor]: ...


def _as_tensor(x: Tensor | Array) -> Tensor:
    """A Tensor as it is; an array as a Tensor without a device, which takes the others' device."""
    return x if isinstance(x, Tensor) else Tensor(x)


def _as_function(name: str, method: Callable[Concatenate[Tensor, P], Tensor]) -> TensorFunction[P]:
    """A Tensor's method as a function of this module, which takes arrays too."""

    @wraps(method)
    def function(x: Tensor | Array, /, *args: P.args, **named: P.kwargs) -> Tensor:
        return method(_as_tensor(x), *args, **named)

    function.__module__, function.__name__, function.__qualname__ = __name__, name, name
    return function


# Activations and statistics as functions, which Sequential takes as well as layers.
sigmoid = _as_function("sigmoid", Tensor.sigmoid)
relu = _as_function("relu", Tensor.relu)
gelu = _as_function("gelu", Tensor.gelu)
softmax = _as_function("softmax", Tensor.softmax)
variance = _as_function("variance", Tensor.var)


def layer_norm(
    x: Tensor | Array, scale: Tensor | Array, shift: Tensor | Array, epsilon: float = 1e-5
) -> Tensor:
    """Normalise to mean 0 and variance 1 along the last axis, then scale and shift [features].

    Ba, Kiros and Hinton (2016). f16 is computed in f32 and rounded once, because squares soon
    overflow f16. Raises ValueError if the numbers of features differ.
    """
    x, scale, shift = map(_as_tensor, (x, scale, shift))
    if not x.shape[-1:] == scale.shape == shift.shape:
        shapes = f"scale {scale.shape} and shift {shift.shape}"
        raise misuse(ValueError, f"layer_norm: {shapes} do not fit the last axis of {x.shape}")
    kind = _common_dtype(x, scale, shift)
    x, scale, shift = map(_widened, (x, scale, shift))
    deviation = (x.variance(-1, keepdims=True) + epsilon).sqrt()
    return _narrowed((x - x.mean(-1, keepdims=True)) / deviation * scale + shift, kind)


def _common_dtype(*operands: Tensor) -> DType:
    return concrete(promote(*(dtype_of("nn", t) for t in operands)))


def _widened(x: Tensor) -> Tensor:
    """An f16 Tensor in f32; any other as it is."""
    return x.cast(f32) if x.dtype is f16 else x


def _narrowed(x: Tensor, operands: DType) -> Tensor:
    """A result that was computed in f32, in f16 if the operands had that dtype."""
    return x.cast(f16) if operands is f16 else x


class Linear:
    """x [..., inputs] @ weight [inputs, outputs] + bias [outputs]. `random` initialises both.

    Raises TypeError for a weight that is no Tensor, such as a number of inputs, and ValueError for
    a weight that has not two axes.
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
        """Gaussian weights of variance 1 / inputs, drawn on the device, and a bias of zeros.

        A tuple, such as (seed, layer number), gives the layers of one seed independent streams of
        random numbers. Raises ValueError for fewer than one input.
        """
        if inputs < 1:
            raise misuse(ValueError, f"Linear: needs at least one input, not {inputs}")
        weight = Tensor.normal((inputs, outputs), seed, variance=1 / inputs, device=device)
        zeros = Tensor.zeros(outputs, device=device).realize() if bias else None
        return Linear(weight.realize(), zeros)

    def __call__(self, x: Tensor | Array) -> Tensor:
        """Raises ValueError for a Tensor without axes, or with another number of features."""
        x = _as_tensor(x)
        if not x.shape:
            text = "Linear: needs [..., inputs], not a Tensor of shape ()"
            raise misuse(ValueError, f"{text}; x.reshape(1) has an axis")
        rows = x.reshape(-1, x.shape[-1]) @ self.weight  # [rows, outputs]
        y = rows if self.bias is None else rows + self.bias
        return y.reshape(*x.shape[:-1], self.weight.shape[-1])

    def parameters(self) -> list[Tensor]:
        """The weight [inputs, outputs], then the bias [outputs] if there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]


class LayerNorm:
    """`layer_norm` with a trainable scale and shift, [features] each."""

    def __init__(self, features: int, device: AnyDevice, epsilon: float = 1e-5) -> None:
        self.scale = Tensor.ones(features, device=device).realize()
        self.shift = Tensor.zeros(features, device=device).realize()
        self.epsilon = epsilon

    def __call__(self, x: Tensor | Array) -> Tensor:
        return layer_norm(x, self.scale, self.shift, self.epsilon)

    def parameters(self) -> list[Tensor]:
        """The scale, then the shift, [features] each."""
        return [self.scale, self.shift]


class Sequential:
    """Layers, or plain functions of a Tensor, applied one after the other.

    Raises TypeError for an argument that cannot be called, such as a list of layers.
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
        """The parameters of all layers, in order; functions have none."""
        return [p for layer in self.layers for p in getattr(layer, "parameters", list)()]


class SelfAttention:
    """Multi-head scaled dot-product self-attention, Vaswani et al. (2017).

    Maps [batch, time, features] to the same shape. The features are divided among the heads.
    """

    def __init__(self, features: int, heads: int, seed: Seed, device: AnyDevice) -> None:
        if heads < 1 or features % heads:
            raise misuse(ValueError, f"{features} features cannot be divided among {heads} heads")
        self.heads = heads
        self.projection_in = Linear.random(features, 3 * features, _subseed(seed, 0), device)
        self.projection_out = Linear.random(features, features, _subseed(seed, 1), device)

    def __call__(self, x: Tensor | Array) -> Tensor:
        """Raises ValueError unless x is [batch, time, features]."""
        x = _as_tensor(x)
        if len(x.shape) != 3:
            text = f"needs [batch, time, features], not {x.shape}"
            raise misuse(ValueError, f"SelfAttention: {text}; x.unsqueeze(0) is a batch of one")
        batch, time, features = x.shape
        head_size = features // self.heads
        projected = self.projection_in(x).reshape(batch, time, 3, self.heads, head_size)
        by_role = projected.permute(2, 0, 3, 1, 4)  # [3, batch, heads, time, head_size]
        query, key, value = (by_role[i] for i in range(3))
        joined = attention(query, key, value).permute(0, 2, 1, 3).reshape(batch, time, features)
        return self.projection_out(joined)

    def parameters(self) -> list[Tensor]:
        """Those of the projection to queries, keys and values, then of the output projection."""
        return [*self.projection_in.parameters(), *self.projection_out.parameters()]


class TransformerEncoder:
    """A post-norm transformer encoder layer: self-attention, then a two-layer network.

    Each of the two has a residual connection, followed by layer normalisation. Maps [batch, time,
    features] to the same shape. `activation` is between the two linear layers.
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
        self.first = Linear.random(features, hidden, _subseed(seed, 2), device)
        self.second = Linear.random(hidden, features, _subseed(seed, 3), device)
        self.norms = LayerNorm(features, device), LayerNorm(features, device)

    def __call__(self, x: Tensor | Array) -> Tensor:
        x = _as_tensor(x)
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.second(self.activation(self.first(x))))

    def parameters(self) -> list[Tensor]:
        """Those of the attention, of the two linear layers, and of both normalisations."""
        layers = (self.attention, self.first, self.second, *self.norms)
        return [p for layer in layers for p in layer.parameters()]


def _subseed(seed: Seed, number: int) -> Seed:
    """The seed of one part of a layer, independent of other layers' seeds such as seed + 1."""
    return (*seed, number) if isinstance(seed, tuple) else (seed, number)


def attention(
    query: Tensor | Array, key: Tensor | Array, value: Tensor | Array,
    mask: Tensor | Array | None = None, causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """softmax(query @ key^T * scale) @ value, Vaswani et al. (2017).

    query, key and value are [..., time, size]; `scale` is 1 / sqrt(size) by default. A bool `mask`
    [..., query time, key time] is false where a query must not attend to a key; a float mask is
    added to the scores. With `causal`, no query attends to later keys. A query that attends to no
    key gives NaN; a float mask of -1e9 instead gives it the mean of all values. f16 is computed in
    f32, in which sums of products do not overflow, and rounded once.
    """
    query, key, value = map(_as_tensor, (query, key, value))
    kind = _common_dtype(query, key, value)
    query, key, value = map(_widened, (query, key, value))
    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    scores = query @ key.transpose() * scale
    if causal:
        visible = Tensor.arange(key.shape[-2]) <= Tensor.arange(query.shape[-2]).reshape(-1, 1)
        scores = Tensor.where(visible, scores, -math.inf)
    if mask is not None:
        mask = _as_tensor(mask)
        if mask.dtype.is_float:
            kind = concrete(promote(kind, mask.dtype))
            scores = scores + _widened(mask)
        else:
            scores = Tensor.where(mask, scores, -math.inf)
    return _narrowed(scores.softmax() @ value, kind)


def nll_loss(log_probabilities: Tensor | Array, target: Tensor | Array) -> Tensor:
    """Negative log-likelihood: the mean of -log_probabilities[row, target[row]] over all rows.

    log_probabilities are [rows, classes], target is int [rows] in [0, classes). Raises
    OutOfBoundsError for a target out of bounds, as far as the host knows the values; ValueError for
    other shapes; TypeError for a target that is not int.
    """
    return _nll_loss("nll_loss", _as_tensor(log_probabilities), _as_tensor(target))


def _nll_loss(operation: str, log_probabilities: Tensor, target: Tensor) -> Tensor:
    if len(log_probabilities.shape) != 2 or target.shape != log_probabilities.shape[:1]:
        shapes = f"not {log_probabilities.shape} and {target.shape}"
        raise misuse(
            ValueError, f"{operation}: needs [rows, classes] and [rows], {shapes}; reshape them"
        )
    if not target.dtype.is_int:
        raise misuse(TypeError, f"{operation}: the target must be int, not {target.dtype.name}")
    checked = check_index_bounds(log_probabilities.shape, target.node, 1)
    rows, classes = log_probabilities.shape
    is_target = Tensor.arange(classes).reshape(1, classes).eq(target.reshape(rows, 1))
    guarded = Tensor(bounded_choice(checked, is_target.node), is_target.device)
    return -Tensor.where(guarded, log_probabilities, 0.0).sum(1).mean()


def cross_entropy(logits: Tensor | Array, target: Tensor | Array) -> Tensor:
    """`nll_loss` of log softmax(logits), for logits [rows, classes] and an int target [rows].

    A float target [rows, classes] gives the probability of each class. Raises as `nll_loss`.
    """
    logits, target = _as_tensor(logits), _as_tensor(target)
    if target.shape == logits.shape and target.dtype.is_float:
        return -(logits.log_softmax() * target).sum(1).mean()
    return _nll_loss("cross_entropy", logits.log_softmax(), target)


def slices(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Views of consecutive parts of one flat Tensor, with these shapes.

    With all parameters in one flat Tensor, the optimizer is a single kernel. Raises ValueError if
    the sizes of the shapes do not add up to the size of the Tensor.
    """
    sizes = [math.prod(s) for s in shapes]
    if flat.shape != (sum(sizes),):
        raise misuse(
            ValueError, f"slices: shapes of {sum(sizes)} elements do not fill {flat.shape}"
        )
    views, begin = [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        views.append(flat.shrink((begin, begin + size)).reshape(*shape))
        begin += size
    return views
