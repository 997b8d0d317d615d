"""The network as Tensor expressions; layers are views of one flat Tensor of parameters."""

from __future__ import annotations

from imgmlp.codec.float_mlp.config import Architecture
from imgmlp.engine import AnyDevice, Tensor, nn


def initial(architecture: Architecture, seed: int, device: AnyDevice) -> Tensor:
    """Random parameters, float32 [parameters], drawn on the device.

    They are Gaussian with mean 0; the variance is 1 / inputs for a matrix, 1 / outputs for a bias.
    """
    parts = []
    for number, (begin, end, shape) in enumerate(architecture.spans()):
        stream = (seed, number)
        draw = Tensor.normal((end - begin,), stream, variance=1 / shape[0], device=device)
        parts.append(draw)
    return Tensor.concat(parts).realize("parameters")


def forward(flat: Tensor, architecture: Architecture, features: Tensor) -> Tensor:
    """[rows, features] -> [rows, channels], where 0 is black and 1 is white; not clipped."""
    parameters = nn.slices(flat, architecture.shapes)
    x = features
    for weight, bias in zip(parameters[:-1:2], parameters[1:-1:2], strict=True):
        x = (x @ weight + bias).leaky_relu(architecture.slope)
    return x @ parameters[-1]
