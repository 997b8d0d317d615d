"""Linear regression: shuffled batches, validation with R2, and the recovered weights.

    python examples/linear_regression.py [DEVICE]

Targets are a weighted sum of 128 features, a bias and some noise. The data stay on the device. The
host sends a new order of the rows for each epoch, and each step takes the next batch of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from imgmlp.engine import (
    AnyDevice,
    Feeder,
    Program,
    Receiver,
    Tensor,
    compile,
    dtype,
    nn,
    open_device,
    optim,
)

FEATURES, TRAINING, VALIDATION = 128, 800, 200
BATCH, EPOCHS, LR, NOISE = 50, 100, 0.01, 0.1
BATCHES = TRAINING // BATCH


@dataclass(frozen=True)
class Data:
    x: np.ndarray  # float32 [rows, FEATURES]; the last VALIDATION rows are not trained on
    y: np.ndarray  # float32 [rows, 1]
    weight: np.ndarray  # float64 [FEATURES, 1], what the targets were made of
    bias: float


def generate(seed: int) -> Data:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(TRAINING + VALIDATION, FEATURES))
    weight, bias = rng.normal(size=(FEATURES, 1)), rng.normal()
    y = x @ weight + bias + rng.normal(size=(len(x), 1)) * NOISE
    return Data(x.astype(np.float32), y.astype(np.float32), weight, bias)


def squared_error(layer: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    return (layer(x) - y).square().mean()


def compile_training(layer: nn.Linear, order: Tensor, data: Data, device: AnyDevice) -> Program:
    """A step on the next batch of `order`; `sum` accumulates the losses of an epoch."""
    x, y = Tensor(data.x[:TRAINING], device), Tensor(data.y[:TRAINING], device)
    count = Tensor(np.int32(0), device, name="count")
    total = Tensor(np.float32(0), device, name="total")
    optimizer = optim.SGD(layer.parameters(), LR)

    def step() -> dict[str, Tensor]:
        turn = count % BATCHES
        rows = order.gather(turn * BATCH + Tensor.arange(BATCH))  # [BATCH]
        loss = squared_error(layer, x.gather(rows), y.gather(rows))
        optimizer.step(loss)
        so_far = Tensor.where(turn.eq(0), 0.0, total) + loss
        total.assign(so_far)
        count.assign(count + 1)
        return {"mean": so_far * (1 / BATCHES)}

    return compile(step, device)


def compile_validation(layer: nn.Linear, data: Data, device: AnyDevice) -> Program:
    x, y = Tensor(data.x[TRAINING:], device), Tensor(data.y[TRAINING:], device)

    def look() -> dict[str, Tensor]:
        error = squared_error(layer, x, y)
        return {"error": error, "r2": 1.0 - error / y.variance()}

    return compile(look, device)


def by_hand(data: Data, orders: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """The same steps in NumPy in float64; returns weight [FEATURES, 1] and bias."""
    weight, bias = np.zeros((FEATURES, 1)), 0.0
    for order in orders:
        for rows in order.reshape(BATCHES, BATCH):
            x = data.x[rows].astype(np.float64)
            error = x @ weight + bias - data.y[rows]
            weight = weight - LR * 2 / BATCH * x.T @ error
            bias -= LR * 2 * error.mean()
    return weight, bias


def train(layer: nn.Linear, data: Data, device: AnyDevice) -> list[np.ndarray]:
    """All epochs; the orders in which rows were taken."""
    order = Tensor(np.arange(TRAINING), device, dtype=dtype.i32, name="order")
    training = compile_training(layer, order, data, device)
    validation = compile_validation(layer, data, device)
    errors: dict[int, float] = {}
    hear_error = Receiver(training, ["mean"], lambda i, got: errors.update({i: got["mean"].item()}))

    def report(i: int, got: dict[str, np.ndarray]) -> None:
        print(f"epoch {i:3d}  training error {errors[i]:8.4f}", end="  ")
        print(f"validation error {got['error']:8.4f}  R2 {got['r2']:.5f}")

    hear_score, feeder = Receiver(validation, ["error", "r2"], report), Feeder(training, order)
    rng, orders = np.random.default_rng(1), []
    for epoch in range(1, EPOCHS + 1):
        orders.append(rng.permutation(TRAINING).astype(np.int32))
        feeder.send(orders[-1])
        training.run(BATCHES)
        if epoch == 1 or epoch % 10 == 0:
            validation.run()
            hear_error.send(epoch)
            hear_score.send(epoch)
    hear_error.wait()
    hear_score.wait()
    return orders


def main(device: AnyDevice) -> None:
    data = generate(seed=42)
    weight = Tensor.empty(FEATURES, 1, device=device, name="weight")
    layer = nn.Linear(weight, Tensor.empty(1, device=device, name="bias"))
    orders = train(layer, data, device)

    found, bias = (p.numpy() for p in layer.parameters())
    print(f"weights: length {np.linalg.norm(found):.4f}, hidden {np.linalg.norm(data.weight):.4f}")
    print(f"  mean squared difference {np.mean((found - data.weight) ** 2):.2e}", end=", ")
    print(f"mean difference {np.abs(found - data.weight).mean():.4f}")
    print(f"bias: {bias.item():.4f}, hidden {data.bias:.4f}")
    np.testing.assert_allclose(found, data.weight, atol=5 * NOISE / np.sqrt(TRAINING))
    np.testing.assert_allclose(bias, data.bias, atol=5 * NOISE / np.sqrt(TRAINING))

    hand_weight, hand_bias = by_hand(data, orders)
    furthest = np.abs(found - hand_weight).max()
    print(f"NumPy takes the same steps to weights that differ by {furthest:.1e} at most")
    near = 1e-5 * np.abs(hand_weight).max()
    np.testing.assert_allclose(found, hand_weight, rtol=0, atol=near)
    np.testing.assert_allclose(bias, hand_bias, rtol=0, atol=near)
    held = data.x[TRAINING:] @ found + bias - data.y[TRAINING:]
    r2 = 1 - np.mean(held**2) / np.var(data.y[TRAINING:])
    print(f"R2 of rows that were not trained on, by NumPy: {r2:.5f}")
    np.testing.assert_equal(bool(r2 > 0.999), True)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
