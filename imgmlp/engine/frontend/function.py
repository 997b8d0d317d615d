"""Function: an operation with a gradient of its own, written with Tensors.

forward computes the answer and may save Tensors; backward turns the gradient by the answer
into one by each argument. Both only build expressions, which are compiled with the rest of
the step: what is saved stands in memory between them if computing it again would cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import common_device

Answers = Tensor | Sequence[Tensor | None] | None


class Context:
    """What forward leaves for backward; both may also set attributes of their own."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep Tensors for backward, which finds them in `saved_tensors`."""
        self.saved_tensors = tensors


class Function:
    """Subclass it, define forward and backward as static methods, and call `apply`.

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
    backward: ClassVar[Any]  # (ctx, g) -> a gradient for each argument, or None for it

    @classmethod
    def apply(cls, *arguments: Any) -> Tensor:
        """The answer for Tensors and anything else that forward takes.

        Raises TypeError if forward gives no Tensor. When gradients are built, TypeError where
        there is no backward, and ValueError where its number of gradients, or a gradient's shape,
        is not the arguments'.
        """
        ctx = Context()
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        answer = cls.forward(ctx, *arguments)
        if not isinstance(answer, Tensor):
            raise misuse(TypeError, f"{cls.__name__}.forward must return a Tensor, not {answer!r}")
        device = common_device(answer, *tensors)

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node | None, ...]:
            if not hasattr(cls, "backward"):
                raise misuse(TypeError, f"{cls.__name__} has no gradient; define its backward")
            found = cls.backward(ctx, Tensor(g, device))
            return tuple(cls._checked(found, arguments))

        node = graph.function(answer.node, [t.node for t in tensors], vjp)
        return Tensor(node, device)

    @classmethod
    def _checked(cls, found: Answers, arguments: Sequence[Any]) -> list[Node | None]:
        """Gradients by the arguments that are Tensors, in their dtypes."""
        several = found if isinstance(found, tuple | list) else (found,)
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
