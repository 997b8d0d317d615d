"""Train a small network to represent one image: the whole method in one file.

    python examples/image_mlp.py [PICTURE] [--device DEVICE] [--steps STEPS] [--save FILE]

The network maps a position to a colour. It is trained on the pixels of one image, 512 random ones
in each step. Its 12,672 weights then represent the image, which can be decoded at any size.
`imgmlp train` does the same with more options; this file has everything essential.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from imgmlp.engine import AnyDevice, Program, Tensor, compile, dtype, open_device, optim

MANDRILL = Path(__file__).parent.parent / "assets" / "mandrill.png"
FREQUENCIES = 16  # along each axis; a sine and a cosine of each make 64 features
SIZES = (4 * FREQUENCIES, 64, 64, 64, 3)
BATCH, LR, SLOPE = 512, 0.005, 0.1
BAND = 64  # rows that are decoded at once


def table(samples: int) -> np.ndarray:
    """The features of each position along one axis: float32 [samples, 32].

    A coordinate itself changes so little from pixel to pixel that fine detail would take very long
    to learn. Sines and cosines distinguish neighbours: those of low frequency tell roughly where a
    position is, those of high frequency exactly.
    """
    positions = (np.arange(samples) + 0.5) / samples  # centres of pixels, 0 to 1
    waves = 2 * np.pi * np.outer(positions, np.geomspace(0.5, 256, FREQUENCIES))
    return np.concatenate([np.sin(waves), np.cos(waves)], axis=1).astype(np.float32)


def draw_weights(device: AnyDevice) -> list[Tensor]:
    """Matrices and biases of three hidden layers, and the last matrix.

    The variance of the random initial weights keeps outputs of a layer as large as its inputs.
    """
    weights = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(SIZES)):
        matrix = Tensor.normal((inputs, outputs), i, variance=1 / inputs, device=device)
        weights.append(matrix.realize(f"matrix{i}"))
        if i < len(SIZES) - 2:
            weights.append(Tensor.empty(outputs, device=device, name=f"bias{i}"))
    return weights


def colours(weights: Sequence[Tensor], features: Tensor) -> Tensor:
    """The network: [positions, 64] -> [positions, 3], from 0 for black to 1 for white."""
    x = features
    for matrix, bias in zip(weights[:-1:2], weights[1::2], strict=True):
        x = (x @ matrix + bias).leaky_relu(SLOPE)
    return x @ weights[-1]


def compile_training(
    picture: np.ndarray, weights: list[Tensor], steps: int, device: AnyDevice
) -> Program:
    """A training step on random pixels.

    All of it happens on the device. The step is compiled once, and then only replayed.
    """
    height, width, _ = picture.shape
    across, down = Tensor(table(width), device), Tensor(table(height), device)
    pixels = Tensor(picture.reshape(-1, 3), device)  # uint8 [height * width, 3]
    count = Tensor(np.uint32(0), device)
    progress = count.cast(dtype.f32) * (1 / steps)  # from 0 to 1
    rate = ((progress * math.pi).cos() + 1.0) * (LR / 2)  # cosine schedule, from LR to 0
    optimizer = optim.AdamW(weights, rate)

    def step() -> dict[str, Tensor]:
        row, column = (
            (Tensor.random_bits((BATCH,), (count, axis)) % size).cast(dtype.i32)
            for axis, size in enumerate((height, width))
        )
        features = Tensor.concat([across.gather(column), down.gather(row)], axis=1)
        target = pixels.gather(row * width + column).cast(dtype.f32) * (1 / 255)
        loss = (colours(weights, features) - target).square().mean()
        optimizer.step(loss)
        count.assign(count + 1)
        return {"loss": loss}

    return compile(step, device)


def decode(weights: list[Tensor], width: int, height: int, device: AnyDevice) -> np.ndarray:
    """Evaluate the network at all pixels of an image of any size: uint8 [height, width, 3]."""
    across, down = Tensor(table(width), device), table(height)
    rows = Tensor.empty(BAND, down.shape[1], device=device)

    def band() -> dict[str, Tensor]:
        shape = (BAND, width, down.shape[1])
        sides = [across.broadcast_to(shape), rows.reshape(BAND, 1, -1).broadcast_to(shape)]
        features = Tensor.concat(sides, axis=2).reshape(BAND * width, -1)
        found = colours(weights, features).maximum(0.0).minimum(1.0)
        return {"pixels": (found * 255 + 0.5).cast(dtype.u8).reshape(BAND, width, 3)}

    program, bands = compile(band, device), []
    for begin in range(0, height, BAND):
        part = down[begin : begin + BAND]
        rows.write(np.pad(part, ((0, BAND - len(part)), (0, 0))))
        program.run()
        bands.append(program.read("pixels")[: len(part)])
    return np.concatenate(bands)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB: 20 is recognisable, 40 hard to distinguish."""
    return -10 * math.log10(float(np.mean((a / 255.0 - b / 255.0) ** 2)))


# --- comparison with NumPy, and results ---


def first_losses(picture: np.ndarray, steps: int, device: AnyDevice) -> list[float]:
    program, losses = compile_training(picture, draw_weights(device), steps, device), []
    for _ in range(3):
        program.run()
        losses.append(program.read("loss").item())
    return losses


def decode_by_hand(weights: list[Tensor], width: int, height: int) -> np.ndarray:
    """The middle row in NumPy: float64 [width, 3], from 0 to 255."""
    w = [t.numpy().astype(np.float64) for t in weights]
    x = np.concatenate([table(width), np.repeat(table(height)[[height // 2]], width, 0)], axis=1)
    for matrix, bias in zip(w[:-1:2], w[1::2], strict=True):
        x = x @ matrix + bias
        x = np.where(x < 0, SLOPE * x, x)
    return np.clip(x @ w[-1], 0, 1) * 255


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("picture", nargs="?", type=Path, default=MANDRILL)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save", type=Path, help="where to put the decoded picture")
    options = parser.parse_args(arguments)
    device = open_device(options.device)
    picture = np.asarray(Image.open(options.picture).convert("RGB"))
    height, width, _ = picture.shape
    on_numpy = first_losses(picture, options.steps, open_device("numpy"))
    found = first_losses(picture, options.steps, device)
    np.testing.assert_allclose(found, on_numpy, rtol=1e-4)

    weights = draw_weights(device)
    program = compile_training(picture, weights, options.steps, device)
    begin = time.perf_counter()
    for i in range(10):
        program.run(max(1, options.steps // 10))
        print(f"{i + 1:3d}0 %  loss {program.read('loss').item():.4f}")
    print(f"trained for {time.perf_counter() - begin:.1f} s on {device.info.describe()}")

    decoded = decode(weights, width, height, device)
    print(f"{width}x{height}: {psnr(picture, decoded):.2f} dB")
    np.testing.assert_allclose(  # colours are rounded, to either side of a tie
        decoded[height // 2], decode_by_hand(weights, width, height), atol=0.51
    )
    larger = decode(weights, 2 * width, 2 * height, device)
    halved = larger.reshape(height, 2, width, 2, 3).mean((1, 3))
    print(f"twice as large: {larger.shape}; halved again {psnr(picture, halved):.2f} dB")
    if options.save:
        Image.fromarray(decoded).save(options.save)
    flat = psnr(picture, np.broadcast_to(picture.mean((0, 1)), picture.shape))
    print(f"a picture of nothing but its mean colour: {flat:.2f} dB")
    np.testing.assert_equal(psnr(picture, decoded) > flat + 2, True)


if __name__ == "__main__":
    sys.exit(main())
