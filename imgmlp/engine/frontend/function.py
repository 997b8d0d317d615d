"""Function: a differentiable operation with a user-defined gradient, written with Tensors.

`forward` computes the result and may save Tensors for `backward`, which maps the upstream gradient
to a gradient for each argument. Both only build expressions, which are compiled with the rest of
the step. Whether a saved Tensor is stored or recomputed is the compiler's decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import common_device

Gradients = Tensor | Sequence[Tensor | None] | None  # what `backward` may return


class Context:
    """Passes Tensors from `forward` to `backward`, which may also set attributes of their own."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Save Tensors for `backward`, as `saved_tensors`."""
        self.saved_tensors = tensors


class Function:
    """Base class: define `forward` and `backward` as static methods, and call `apply`.

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x * 2

    y = Square.apply(x)
    """

    forward: ClassVar[Any]  # (ctx, *arguments) -> Tensor
    backward: ClassVar[Any]  # (ctx, g) -> for each argument its gradient, or None

    @classmethod
    def apply(cls, *arguments: Any) -> Tensor:
        """The result of `forward`, whose arguments may be Tensors or anything else.

        Raises TypeError if `forward` returns no Tensor. When a gradient is taken later, that raises
        TypeError if there is no `backward`, and ValueError if it returns another number of
        gradients than there are arguments, or a gradient of another shape.
        """
        ctx = Context()
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        result = cls.forward(ctx, *arguments)
        if not isinstance(result, Tensor):
            raise misuse(TypeError, f"{cls.__name__}.forward must return a Tensor, not {result!r}")
        device = common_device(result, *tensors)

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node | None, ...]:
            if not hasattr(cls, "backward"):
                raise misuse(TypeError, f"{cls.__name__} has no gradient; define its backward")
            gradients = cls.backward(ctx, Tensor(g, device))
            return tuple(cls._tensor_gradients(gradients, arguments))

        node = graph.function(result.node, [t.node for t in tensors], vjp)
        return Tensor(node, device)

    @classmethod
    def _tensor_gradients(cls, gradients: Gradients, arguments: Sequence[Any]) -> list[Node | None]:
        """Check what `backward` returned; the gradients of those arguments that are Tensors."""
        several = gradients if isinstance(gradients, tuple | list) else (gradients,)
        name = f"{cls.__name__}.backward"
        if len(several) != len(arguments):
            raise misuse(
                ValueError,
                f"{name} gave {len(several)} gradients for {len(arguments)} arguments of "
                "forward; return None for those that have no gradient",
            )
        nodes: list[Node | None] = []
        for i, (g, argument) in enumerate(zip(several, arguments, strict=True)):
            if not isinstance(argument, Tensor):
                continue
            if g is None or not argument.dtype.is_float:
                nodes.append(None)
                continue
            if not isinstance(g, Tensor):
                kind = type(g).__name__
                raise misuse(TypeError, f"{name}: gradient {i} must be a Tensor, not {kind}")
            if g.shape != argument.shape:
                raise misuse(
                    ValueError,
                    f"{name}: gradient {i} is of shape {g.shape}, its argument of {argument.shape}",
                )
            nodes.append(graph.cast(g.node, argument.dtype))
        return nodes
