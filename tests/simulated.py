# ruff: noqa: E501 (a program of the table is a line)
"""Small programs that together need every kind of kernel, at sizes that divide nothing.

Each is a function of a device. What a new instruction or building block does belongs here:
tests/engine/codegen/test_simulator.py notices when one is missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from test_schedule import SIDE, grow
from test_values_and_gradients import CASES, Case, inputs_of

from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.float_mlp.features import encoding
from imgmlp.codec.float_mlp.fit import TrainingStep
from imgmlp.engine import AnyDevice, Program, Tensor, compile, cond, dtype, loop, nn, optim
from imgmlp.engine.ir.graph import Buffer, buffer
from imgmlp.engine.ir.target import Lanes

Array = np.ndarray[Any, Any]
Make = Callable[[AnyDevice], Program]
STORED = (dtype.bool_, dtype.i8, dtype.u8, dtype.i32, dtype.u32, dtype.f16, dtype.f32)


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def outputs(f: Callable[..., Any], *arrays: Array) -> Make:
    """The Tensor, or the dictionary of Tensors, that a function makes of some arrays."""

    def make(device: AnyDevice) -> Program:
        tensors = [Tensor(a, device) for a in arrays]

        def step() -> dict[str, Tensor]:
            found = f(*tensors)
            return found if isinstance(found, dict) else {"y": found}

        return compile(step, device)

    return make


def with_gradients(case: Case) -> Make:
    """A case of tests/engine/operations/test_values_and_gradients.py and the gradients of all its inputs."""

    def both(*tensors: Tensor) -> dict[str, Tensor]:
        y = case.tensors(*tensors)
        slopes = y.square().sum().gradient(list(tensors))
        return {"y": y} | {f"slope{i}": g for i, g in enumerate(slopes)}

    return outputs(both, *inputs_of(case))


def is_product(case: Case) -> bool:
    return case.name.split(",")[0].split()[0] in ("product", "matrix", "vector")


# --- products: on lanes tiles have 8 to 64 rows and 64 columns, so there are few and short ones ---


def product(rows: int, inner: int, columns: int) -> Make:
    return outputs(lambda x, y: x @ y, draw(rows, inner), draw(inner, columns))


def tiles_of(rows: int) -> Make:
    """Products enough to keep the units busy with tiles of these many rows, all but two used."""
    return outputs(lambda x, y: x @ y, draw(13, rows - 2, 2), draw(13, 2, 9))


def halved_products(x: Tensor, y: Tensor) -> Tensor:
    """Of rounded factors, exact."""
    whole = (x * 9).cast(dtype.i32).cast(dtype.f32) @ (y * 9).cast(dtype.i32).cast(dtype.f32)
    return (whole.cast(dtype.i32) >> 1).cast(dtype.f32)


def layer_gradients(x: Tensor, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """The bias gradient comes with that of the weights, as a second output."""
    y = (x @ weight + bias).leaky_relu(0.1)
    slopes = y.square().sum().gradient([weight, bias])
    return {"y": y, "weight": slopes[0], "bias": slopes[1]}


PRODUCTS: dict[str, Make] = {
    "product 1 1 1": product(1, 1, 1),
    "product 1 5 1": product(1, 5, 1),
    "product 7 17 3": product(7, 17, 3),
    "product 5 9 16": product(5, 9, 16),
    "product 67 2 70": product(67, 2, 70),
    "product 7 257 16": product(7, 257, 16),
    "product left transposed": outputs(lambda x, y: x.transpose() @ y, draw(5, 7), draw(5, 3)),
    "product right transposed": outputs(lambda x, y: x @ y.transpose(), draw(7, 5), draw(3, 5)),
    "product flipped, padded": outputs(lambda x, y: x.flip(0).pad((1, 0), (0, 2)) @ y.flip(1), draw(3, 5), draw(7, 3)),
    "product of computed": outputs(lambda x, y: (x * 2) @ y.exp(), draw(3, 5), draw(5, 2)),
    "product, narrow": product(61, 3, 5),
    "product, batched": outputs(lambda x, y: x @ y, draw(2, 3, 5), draw(2, 5, 7)),
    "product, batch broadcast": outputs(lambda x, y: x @ y, draw(2, 3, 5), draw(5, 2)),
    "vector by matrix": outputs(lambda x, y: x @ y, draw(5), draw(5, 3)),
    "products side by side": outputs(lambda x, y: Tensor.concat([x @ y, (x @ y).sin(), x], 1), draw(3, 5), draw(5, 5)),
    "product, split": outputs(lambda x, y: x.transpose() @ y, draw(20, 3), draw(20, 5)),
    "product as whole numbers": outputs(halved_products, draw(5, 7), draw(7, 16)),
    "layer": outputs(layer_gradients, draw(5, 7), draw(7, 3), draw(3)),
    "layer, split": outputs(layer_gradients, draw(21, 3), draw(3, 17), draw(17)),
}  # fmt: skip


# --- everything else ---


def small_integers(kind: dtype.DType, *shape: int) -> Array:
    low = 0 if kind in (dtype.bool_, dtype.u8, dtype.u32) else -9
    return np.random.default_rng(1).integers(low, 10, shape).astype(kind.np)


def reductions(x: Tensor) -> dict[str, Tensor]:
    """Sums and maxima along every axis of a matrix."""
    return {
        f"{what} {axis}": getattr(x, what)(axis) for what in ("sum", "max") for axis in (0, 1, None)
    }


def of_counts(*tensors: Tensor) -> dict[str, Tensor]:
    """Around 32, from which lanes share a reduction, and multiples of 16 and 128."""
    return {f"{t.shape[1]}": t.square().sum(1) + 1 for t in tensors}


def rows(*tensors: Tensor) -> dict[str, Tensor]:
    """Kernels of whole rows: what is kept of them, and totals that are stored as well."""
    found = {}
    for t in tensors:
        found[f"softmax {t.shape[1]}"] = t.softmax(-1)
        peak = t.max(-1, keepdims=True)
        found |= {f"peak {t.shape[1]}": peak, f"below {t.shape[1]}": (t - peak).exp()}
    return found


def integers(x: Tensor, y: Tensor, z: Tensor) -> dict[str, Tensor]:
    return {
        "//": x // y, "%": x % y, "^": x ^ y, "&": x & y, "|": x | y, "<<": z << 3, ">>": z >> 3,
        "u//": z // 7, "u%": z % 7, "eq": x.eq(y), "<": x < y, "min": x.minimum(y),
        "neg": -x, "float": z.cast(dtype.f32), "byte": x.cast(dtype.u8), "truth": x.cast(dtype.bool_),
    }  # fmt: skip


def casts(*tensors: Tensor) -> dict[str, Tensor]:
    """All pairs; of a negative float no unsigned number, which each processor makes otherwise."""
    found = {}
    for t, d in itertools.product(tensors, STORED):
        unsigned = t.dtype.is_float and d in (dtype.u8, dtype.u32)
        found[f"{t.dtype.name} {d.name}"] = (t.abs() if unsigned else t).cast(d)
    return found


def views(x: Tensor) -> dict[str, Tensor]:
    """Chains of movements whose masks overlap: [5, 7] and what becomes of it."""
    padded = x.pad((2, 1), (0, 3)).flip(1)  # [8, 10]
    folded = padded.reshape(4, 20).pad((1, 1), (0, 0)).transpose()  # [20, 6]
    return {
        "padded": padded + 1,
        "folded": folded * 2,
        "cut": folded.shrink((3, 17), (1, 6)).reshape(7, 10).pad((0, 0), (5, 0)).exp(),
        "steps": padded[::-3, 1::2] - 1,
        "rows": padded.sum(1),
        "columns": padded.max(0),
        "repeated": padded[1].reshape(1, 10).expand(3, 10).reshape(5, 6) * 3,
        "joined": Tensor.concat([padded, x.pad((0, 0), (1, 2)), padded * 2]),
        "beside": Tensor.concat([x, x.sum(1, keepdims=True), x[:, ::-2]], 1),
    }


def gathered(table: Tensor, index: Tensor) -> dict[str, Tensor]:
    rows = table.gather(index)
    (slope,) = rows.square().sum().gradient([table])
    return {"rows": rows, "of computed": (table * 2).gather((index + 1) % 9), "slope": slope}


def several(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Outputs of one kernel, of one shape and of two."""
    return {
        "sum": x + y, "both": (x + y) * y, "sine": x.sin(), "one": x[0, 0] * 2, "row": x[1] + 1,
        "remainder": x % y,
    }  # fmt: skip


def around(x: Tensor) -> Tensor:
    """[2, rows of 19] -> the same: of each value what is beside it, above and below."""
    size = x.shape[1]
    frame = Tensor.concat([Tensor.zeros(2, 20), x, Tensor.zeros(2, 20)], 1)
    taps = [frame[c : c + 1, 20 + n : 20 + n + size] for c in range(2) for n in (-20, -1, 0, 1, 19)]
    sums = [sum(t * (i + k) for k, t in enumerate(taps)) for i in range(1, 3)]
    return (Tensor.concat(sums, 0) * 0.01).contiguous()


def random(seed: Tensor) -> dict[str, Tensor]:
    return {
        "bits": Tensor.random_bits((7, 3), (5, seed)),
        "uniform": Tensor.uniform((67,), (5, seed)),
        "normal": Tensor.normal((5, 1), (6, seed), mean=1.0),
    }


def looped(x: Tensor, table: Tensor) -> dict[str, Tensor]:
    """Carried values that are read elsewhere than where they are replaced, and that swap."""

    def turned(i: Tensor, v: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        return v.flip(0) * 0.5 + table.gather(i), total + v.sum(0)

    v, total = loop(3, turned, x, x[0])
    a, b = loop(3, lambda i, a, b: (b, a * 0.5 + b), x, x.sin())
    return {"v": v, "total": total, "a": a, "b": b}


def chosen(x: Tensor, c: Tensor) -> dict[str, Tensor]:
    """Both ways of choices: all kinds of kernels that end at once, and some that do not."""

    def maxima(i: Tensor, v: Tensor) -> Tensor:
        return cond(i < 1, lambda: v.max(1, keepdims=True) * x, lambda: v + 1)

    ways = {}
    for name, condition in {"no": c < 0, "yes": c > 0}.items():
        ways[name] = cond(condition, lambda: (x @ x.transpose()).sum(1), lambda: x[:, 0] * 2)
        ways[f"{name}, sum"] = cond(condition, lambda: x * 2 + x.sum(), x.sin)
    return ways | {"in a loop": loop(2, maxima, x)}


def states(device: AnyDevice) -> Program:
    """Replaced in place, by each other, and by what must be set aside first."""
    a, b, c = (Tensor(draw(5, 7) + i, device) for i in range(3))
    count, total = Tensor(np.uint32(3), device), Tensor(draw(7), device)
    smooth = Tensor(np.float32(1), device)

    def step() -> dict[str, Tensor]:
        a.assign(b)
        b.assign(a)
        c.assign(c.flip(0) + a)
        total.assign(total * 0.5 + c.sum(0))
        count.assign(count + 1)
        smooth.assign(smooth * 0.9 + c.square().sum())  # a sum that lanes share
        changed = {"a": a, "b": b, "c": c, "count": count, "total": total, "smooth": smooth}
        return {"old": c * 1.0} | changed

    return compile(step, device)


def optimizers(device: AnyDevice) -> Program:
    """Each form of AdamW, Adam and gradient descent, on parameters of awkward shapes."""
    kept = [Tensor(draw(*s), device) for s in ((5, 7), (1,), (67,), (3,))]
    methods = [
        optim.AdamW(kept[:2], lr=0.1),
        optim.AdamW(kept[2:3], lr=0.1, form="seed"),
        optim.SGD(kept[3:], lr=0.1),
    ]

    def step() -> dict[str, Tensor]:
        for method in methods:
            method.step(
                sum(
                    (p.square().sum() for p in method.parameters[1:]),
                    method.parameters[0].exp().sum(),
                )
            )
        return {f"p{i}": p for i, p in enumerate(kept)}  # fmt: skip

    return compile(step, device)


def random_graph(seed: int) -> Make:
    """A dozen operations on what there is already, two states, three outputs."""

    def make(device: AnyDevice) -> Program:
        rng = np.random.default_rng(seed)
        held = [Buffer((SIDE, SIDE), dtype.f32, device, draw(SIDE, SIDE)) for _ in range(2)]
        nodes = [buffer(b) for b in held]
        for kind in rng.integers(0, 12, 12):
            nodes.append(grow(nodes, kind, *rng.integers(0, 99, 2)))
        chosen = {f"y{i}": nodes[n] for i, n in enumerate(rng.integers(0, len(nodes), 3))}
        return Program(device, chosen, [(held[0], nodes[-1] * 0.5), (held[1], nodes[-2])])

    return make


def training(preset: str, **changes: Any) -> Make:
    """The trainer's step for a picture of 5 by 7 pixels."""

    def make(device: AnyDevice) -> Program:
        settings = replace(PRESETS[preset], features=8, hidden=5, layers=1, **changes)
        pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3)).astype(np.uint8)
        shape, frequencies = settings.architecture(3), encoding(settings, 5, 7)
        return TrainingStep(pixels, shape, frequencies, settings, device).program

    return make


def transformer(device: AnyDevice) -> Program:
    """One encoder layer of awkward sizes, its loss, all gradients and descent."""
    net = nn.Sequential(
        nn.TransformerEncoder(6, 2, 7, 1, device), nn.Linear.random(6, 5, 99, device)
    )
    x, target = Tensor(draw(1, 3, 6), device), Tensor(np.array([4, 0, 1]), device)
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    def step() -> dict[str, Tensor]:
        loss = nn.cross_entropy(net(x).reshape(3, 5), target)
        optimizer.step(loss)
        return {"loss": loss} | {f"p{i}": p for i, p in enumerate(net.parameters())}

    return compile(step, device)


OTHERS: dict[str, Make] = {
    "reductions by count": outputs(of_counts, *(draw(3, n) for n in (1, 2, 31, 32, 33, 127, 128, 129, 257))),
    "rows": outputs(rows, *(draw(3, n) for n in (5, 64, 131, 256))),
    "sums of every other one": outputs(lambda x: (x[:, ::2] * x[:, 1::2]).sum(1), draw(3, 2 * 59)),
    "columns whose terms lanes share": outputs(lambda x: {"sum": x.sum(0) * 2, "max": x.max(0)}, draw(8, 45)),
    "reductions of middle axes": outputs(lambda x: {"1": x.sum(1), "02": x.max((0, 2))}, draw(3, 37, 5)),
    "tiles with a halo": outputs(lambda x: around(around(x).sin().contiguous()) + x, draw(2, 19 * 11)),
    "transpose in tiles": outputs(lambda x: x.transpose() * 2, draw(70, 20)),
    "transpose beside others": outputs(lambda x, y: {"y": x.transpose() + y, "z": x.transpose() < y}, draw(32, 33), draw(33, 32)),
    "map by lanes at once": outputs(lambda x, y: {"y": x * y, "x": x + 1}, draw(2, 1024), draw(1024)),
    "sum by lanes at once": outputs(lambda x: x.sum(1), draw(3, 2048)),
    "maximum in two stages": outputs(lambda x: x.max(), draw(128, 129)),
    "integers": outputs(integers, small_integers(dtype.i32, 67), small_integers(dtype.i32, 67) * 2 + 1, small_integers(dtype.u32, 67)),
    "casts": outputs(casts, *(small_integers(d, 13) for d in STORED)),
    "sizes": outputs(lambda *t: {str(x.shape): x * 2 + 1 for x in t}, *(draw(n) for n in (1, 2, 63, 64, 65, 131)), draw(1, 1), draw(3, 1), draw(1, 67)),
    "broadcasting": outputs(lambda x, r, c, n: x * r + c.exp() / n, draw(5, 67), draw(67) + 2, draw(5, 1), draw(1) + 3),
    "numbers": outputs(lambda x, y: {"mulacc": x.multiply_add(y, 3.0), "root": x.square().sqrt(), "log": (x + 2).log()}, draw(13), draw(13)),
    "views": outputs(views, draw(5, 7)),
    "gather": outputs(gathered, draw(9, 5), np.array([[3, 0], [3, 8], [3, 1]])),
    "several outputs": outputs(several, draw(5, 7), draw(5, 7)),
    "random numbers": outputs(random, np.array([7], np.uint32)),
    "choices": outputs(chosen, draw(5, 7), np.array(3)),
    "loops": outputs(looped, draw(5, 7), draw(3, 7)),
    "states": states,
    "optimizers": optimizers,
} | {f"reductions of {d.name}": outputs(reductions, small_integers(d, 3, 41)) for d in STORED}  # fmt: skip


def descent(device: AnyDevice) -> Program:
    """Two layers, and rows enough for each work-group to have several tiles of them."""
    x, first, bias, last = (Tensor(draw(*s), device) for s in ((800, 2), (2, 3), (3,), (3, 2)))

    def step() -> dict[str, Tensor]:
        loss = ((x @ first + bias).relu() @ last).square().sum()
        optim.SGD([first, bias, last], lr=1e-4).step(loss)
        return {"loss": loss, "first": first, "bias": bias, "last": last}

    return compile(step, device)


STEPS: dict[str, Make] = {
    "descent": descent,
    "training": training("default", batch=17),
    "training, seed's": training("seed", batch=20),
    "transformer": transformer,
}


def programs(lanes: Lanes) -> dict[str, Make]:
    """What the simulator runs in one mapping, whole steps apart."""
    cases = {c.name: with_gradients(c) for c in CASES if lanes == "one" or not is_product(c)}
    tall = {f"tiles of {n} rows": tiles_of(n) for n in (8, 16, 32, 64) if lanes == "group"}
    graphs = {f"graph {seed}": random_graph(seed) for seed in range(10) if lanes == "one"}
    return cases | graphs | tall | PRODUCTS | OTHERS
