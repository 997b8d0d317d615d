"""What integer weights cost compared with float32: the same network, trained both ways.

    python -m benchmarks.weight_precision PICTURE... --weights 12000 --bits 6.9

Prints one row of a Markdown table for each picture: PSNR with float32 weights from a run without
noise and rounding, PSNR of the decoded file, and the bits per weight of its two sections.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from imgmlp import image as pictures
from imgmlp.codec.mlp import bit_allocation, integer_inference, qat_step, rate_model
from imgmlp.codec.mlp.qat_step import LearningStep
from imgmlp.codec.mlp.training_phases import MlpTrainer, MlpTrainerState
from imgmlp.codec.training import target
from imgmlp.codec.training.run import Run
from imgmlp.engine import AnyDevice, Tensor, open_device
from imgmlp.image import Picture

RENDERED_PIXELS = 8192  # rendered at once


class FreeTrainer(MlpTrainer):
    """A run whose weights stay free: neither noise nor rounding begins."""

    def _advance(self, done: int, psnr: float) -> None:
        pass


def float_psnr(picture: Picture, step: LearningStep) -> float:
    """PSNR of the picture that the float32 weights of a step give."""
    positions = np.arange(picture.width * picture.height)
    tables = [
        qat_step.feature_table(step.shape.frequencies, samples)
        for samples in (picture.width, picture.height)
    ]
    parts = []
    for begin in range(0, len(positions), RENDERED_PIXELS):
        part = positions[begin : begin + RENDERED_PIXELS]
        rows = tables[0][part % picture.width], tables[1][part // picture.width]
        features = Tensor(np.concatenate(rows, axis=1), step.device)
        parts.append(qat_step.forward(step.flat, step.shape, features).numpy())
    outputs = np.concatenate(parts).reshape(picture.pixels.shape)
    levels = (np.clip(outputs + 0.5, 0, 1) * 255 + 0.5).astype(np.uint8)
    return pictures.psnr(picture.pixels, levels)


def trained(picture: Picture, weights: float, steps: int, device: AnyDevice) -> float:
    """PSNR with float32 weights."""
    shape = rate_model.network_shape(weights, picture.channels)
    step = LearningStep(picture.pixels, shape, 0, device)
    FreeTrainer(step, MlpTrainerState(steps, 0.0), math.inf).run(Run())
    return float_psnr(picture, step)


def coded(
    picture: Picture, weights: float, bits: float, steps: int, device: AnyDevice
) -> tuple[float, float]:
    """PSNR with integer weights, and bits per weight in the file."""
    shape = rate_model.network_shape(weights, picture.channels)
    step = LearningStep(picture.pixels, shape, 0, device)
    budget = bits * shape.parameters
    lmbda = rate_model.initial_lmbda(weights, picture.width * picture.height)
    trainer = MlpTrainer(step, MlpTrainerState(steps, lmbda), budget)
    trainer.run(Run())
    arrays = trainer.arrays()
    choices = bit_allocation.choose_step_sizes(
        arrays, bit_allocation.log_sizes(trainer.choices()), budget
    )
    network = bit_allocation.network(arrays, choices, shape)
    size = 8 * sum(len(section) for section in network.sections())
    decoded = integer_inference.decode(network, picture.width, picture.height, device)
    return pictures.psnr(picture.pixels, decoded), size / shape.parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pictures", type=Path, nargs="+")
    parser.add_argument("--weights", type=float, default=12_000)
    parser.add_argument("--bits", type=float, default=6.9)
    parser.add_argument("--steps", type=int, default=target.DEFAULT_EFFORT_STEPS)
    parser.add_argument("--device", default="auto")
    chosen = parser.parse_args()
    device = open_device(chosen.device)
    print("| picture | float32, dB | coded, dB | loss, dB | bits a weight |\n|---|---|---|---|---|")
    for path in chosen.pictures:
        picture = pictures.load(path)
        free = trained(picture, chosen.weights, chosen.steps, device)
        rounded, bits = coded(picture, chosen.weights, chosen.bits, chosen.steps, device)
        figures = f"{free:.2f} | {rounded:.2f} | {free - rounded:+.2f} | {bits:.2f}"
        print(f"| {path.stem} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
