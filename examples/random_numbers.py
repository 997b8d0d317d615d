"""Random numbers from a counter: the same on every device, uniform and Gaussian.

    python examples/random_numbers.py [DEVICE]

No state is kept between two draws. Element i of a stream is a hash of i and of the stream's seeds,
so thousands of lanes can draw at once, and a seed may itself be computed on the device.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, compile, nn, open_device

COUNT = 20_000


def lowbias32(x: np.ndarray) -> np.ndarray:
    """Chris Wellons' 32-bit hash lowbias32, found by a search for the lowest bias."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def bits_by_hand(count: int, seed: int) -> np.ndarray:
    """uint32 [count]: for each index, the hash of its own hash and that of the seed."""
    mixed = lowbias32(np.uint32([seed]) + np.uint32(0x9E3779B9))
    return lowbias32(lowbias32(np.arange(count, dtype=np.uint32)) + mixed)


def normal_by_hand(bits: np.ndarray) -> np.ndarray:
    """Box-Muller transform: a radius and an angle from two uniform numbers of 24 bits each."""
    first, second = (b.astype(np.float64) // 256 * 2.0**-24 for b in (bits, lowbias32(bits)))
    return np.sqrt(-2 * np.log(1 - first)) * np.cos(2 * np.pi * second)


def draw(values: np.ndarray) -> None:
    """A histogram as text."""
    counts, edges = np.histogram(values, bins=15, range=(-3, 3))
    for count, edge in zip(counts, edges, strict=False):
        print(f"{edge:6.2f}  {'#' * round(60 * count / counts.max())}")


def main(device: AnyDevice) -> None:
    seed = Tensor(np.uint32(7), device, name="seed")

    def step() -> dict[str, Tensor]:
        seed.assign(seed + 1)  # another stream in the next step
        bits = Tensor.random_bits((COUNT,), seed)
        return {"bits": bits, "normal": Tensor.normal((COUNT,), seed)}

    program = compile(step, device)
    for number in (7, 8):
        program.run()
        expected = bits_by_hand(COUNT, number)
        np.testing.assert_array_equal(program.read("bits"), expected)
        normal = normal_by_hand(expected)  # a rounded angle turns the radius by as much
        near = 2 * np.pi * 1e-6 * np.abs(normal).max()
        np.testing.assert_allclose(program.read("normal"), normal, rtol=0, atol=near)
        print(f"seed {number}: {program.read('bits')[:3]} ... are the bits that NumPy finds")
    values = program.read("normal").astype(np.float64)
    draw(values)
    print(f"mean {values.mean():+.4f}, variance {values.var():.4f}")
    np.testing.assert_allclose([values.mean(), values.var()], [0, 1], atol=0.04)  # four sigma

    layer = nn.Linear.random(256, 64, seed=1, device=device)
    spread = layer.weight.numpy().var() * 256
    print(f"weights of 256 inputs have a variance of {spread:.3f} / 256")
    np.testing.assert_allclose(spread, 1, atol=0.05)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
