"""Three parabolas recovered from random points: a gradient checked by hand, then training.

    python examples/quadratic_fit.py [DEVICE]

y = A x**2 + B for three numbers x at a time. The parameters are a matrix, whose diagonal should
become A, and an offset, which should become B. The step draws its own x on the device.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, Program, Tensor, compile, open_device, optim

A, B = np.array([1.777, 1.333, 0.333]), np.array([1.55, 0.0, -1.666])
ROWS, STEPS, LR = 8, 3000, 0.01333


def compile_step(device: AnyDevice) -> Program:
    matrix = Tensor.empty(3, 3, device=device, name="matrix")
    offset = Tensor.empty(1, 3, device=device, name="offset")
    count = Tensor(np.uint32(0), device, name="count")
    optimizer = optim.AdamW([matrix, offset], LR, (0.9, 0.999), weight_decay=0.0, form="seed")

    def step() -> dict[str, Tensor]:
        x = Tensor.uniform((ROWS, 3), count, device)  # other numbers in every step
        expected = x.square() * Tensor(A, device) + Tensor(B, device)
        loss = (x.square() @ matrix + offset - expected).square().sum()
        optimizer.step(loss)
        count.assign(count + 1)
        by_matrix, by_offset = loss.gradient([matrix, offset])
        results = {"x": x, "loss": loss, "by_matrix": by_matrix, "by_offset": by_offset}
        return {**results, "matrix": matrix, "offset": offset}

    return compile(step, device)


class ByHand:
    """The same in NumPy: gradients derived by hand, AdamW without bias correction."""

    def __init__(self) -> None:
        self.values = [np.zeros((3, 3)), np.zeros((1, 3))]
        self.first = [np.zeros_like(v) for v in self.values]
        self.second = [np.zeros_like(v) for v in self.values]

    def step(self, x: np.ndarray) -> tuple[float, list[np.ndarray]]:
        matrix, offset = self.values
        error = x**2 @ matrix + offset - (x**2 * A + B)  # [ROWS, 3]
        slopes = [2 * (x**2).T @ error, 2 * error.sum(0, keepdims=True)]
        for i, g in enumerate(slopes):
            self.first[i] = 0.9 * self.first[i] + 0.1 * g
            self.second[i] = 0.999 * self.second[i] + 0.001 * g * g
            spread = np.sqrt(np.abs(self.second[i] - self.first[i] ** 2)) + 1e-8
            self.values[i] = self.values[i] - self.first[i] / spread * LR
        return float((error**2).sum()), slopes


def main(device: AnyDevice) -> None:
    program, hand = compile_step(device), ByHand()
    for _ in range(20):
        program.run()
        loss, slopes = hand.step(program.read("x").astype(np.float64))
        np.testing.assert_allclose(program.read("loss"), loss, rtol=1e-4)
        largest = max(np.abs(slope).max() for slope in slopes)
        for name, slope in zip(("by_matrix", "by_offset"), slopes, strict=True):
            np.testing.assert_allclose(program.read(name), slope, rtol=0, atol=1e-4 * largest)
        moved = np.abs(hand.values[0]).max()
        np.testing.assert_allclose(program.read("matrix"), hand.values[0], atol=1e-4 * moved)
    print("losses, gradients and matrices of 20 steps are those found by hand")
    for done in range(500, STEPS + 1, 500):
        program.run(500)
        print(f"step {done:5d}  loss {program.read('loss').item():.2e}")
    print(f"matrix\n{program.read('matrix')}\nshould be diagonal: {A}")
    print(f"offset {program.read('offset')}\nshould be {B}")
    np.testing.assert_allclose(program.read("matrix"), np.diag(A), atol=0.03)
    np.testing.assert_allclose(program.read("offset"), [B], atol=0.03)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
