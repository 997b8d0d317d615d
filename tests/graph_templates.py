# ruff: noqa: E501 (an operation is a line)
"""What a line of a random graph may do: an operation on Tensors, and the same in NumPy.

A template's first letter says what x must be: f a float, n a number, i a whole number, b a bool, or
*. What else stands in braces is chosen by tests/random_graphs.py, the same for both texts: other
values, axes, shapes, indices. P is the dtype that all operands of a line become.
"""

from __future__ import annotations

from typing import NamedTuple


class Template(NamedTuple):
    x: str
    tensor: str
    array: str


def _same(x: str, *texts: str) -> list[Template]:
    """What is written in the same way for Tensors and for arrays."""
    return [Template(x, text, text) for text in texts]


def _functions(x: str, texts: str) -> list[Template]:
    """Methods of a Tensor that are NumPy's functions of these names."""
    pairs = (text.partition("=")[::2] for text in texts.split())
    return [Template(x, f"{{x}}.{name}()", f"np.{other or name}({{x}})") for name, other in pairs]


ELEMENTWISE = [
    *_functions(
        "f",
        "sin cos tanh atan=arctan abs sign square floor ceil trunc round isnan isinf isfinite logical_not",
    ),
    Template("f", "{x}.clip(-4, 4).exp()", "np.exp(np.clip({x}, -4, 4))"),
    Template("f", "{x}.clip(-4, 4).exp2()", "np.exp2(np.clip({x}, -4, 4))"),
    Template("f", "{x}.clip(-4, 4).expm1()", "np.expm1(np.clip({x}, -4, 4))"),
    Template("f", "({x}.abs() + 0.3).log()", "np.log(np.abs({x}) + 0.3)"),
    Template("f", "({x}.abs() + 0.3).log2()", "np.log2(np.abs({x}) + 0.3)"),
    Template("f", "{x}.abs().log1p()", "np.log1p(np.abs({x}))"),
    Template("f", "({x}.abs() + 0.3).sqrt()", "np.sqrt(np.abs({x}) + 0.3)"),
    Template("f", "({x}.abs() + 0.3).rsqrt()", "1 / np.sqrt(np.abs({x}) + 0.3)"),
    Template("f", "{x}.sin().tan()", "np.tan(np.sin({x}))"),
    Template("f", "({x}.sin() * 0.75).asin()", "np.arcsin(np.sin({x}) * 0.75)"),
    Template("f", "({x}.sin() * 0.75).acos()", "np.arccos(np.sin({x}) * 0.75)"),
    Template("f", "{x}.erf()", "erf({x})"),
    Template("f", "{x}.relu()", "np.maximum({x}, 0)"),
    Template("f", "{x}.leaky_relu(0.125)", "np.where({x} < 0, 0.125 * {x}, {x})"),
    Template("f", "{x}.elu(0.5)", "np.where({x} > 0, {x}, 0.5 * np.expm1(np.minimum({x}, 0)))"),
    Template("f", "{x}.sigmoid()", "1 / (1 + np.exp(-{x}))"),
    Template("f", "{x}.silu()", "{x} / (1 + np.exp(-{x}))"),
    Template("f", "{x}.softplus()", "np.logaddexp({x}, 0)"),
    Template(
        "f", "{x}.gelu()", "{x} / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * ({x} + 0.044715 * {x}**3)))"
    ),
    Template("f", "{x}.gelu(exact=True)", "0.5 * {x} * erfc(-{x} / np.sqrt(2))"),
    Template("f", "({x}.abs() + 0.5).reciprocal()", "1 / (np.abs({x}) + 0.5)"),
    Template("f", "{x} / ({y}.abs() + 0.5)", "{x} / (cast(np.abs({y}), 'f32') + 0.5)"),
    Template("f", "{c} / ({x}.square() + 0.5)", "{c} / (np.square({x}) + 0.5)"),
    Template("f", "{x} // ({y}.abs() + 0.5)", "{x} // (cast(np.abs({y}), 'f32') + 0.5)"),
    Template("f", "{x} % ({y}.abs() + 0.5)", "{x} % (cast(np.abs({y}), 'f32') + 0.5)"),
    Template(
        "f",
        "({x}.abs() + 0.5) ** {y}.cast(dtype.f32).clip(-2, 2)",
        "(np.abs({x}) + 0.5) ** np.clip(cast({y}, 'f32'), -2, 2)",
    ),
    Template("f", "({x}.abs() + 0.5) ** {c}", "(np.abs({x}) + 0.5) ** {c}"),
    Template("f", "{x}.copysign({y})", "np.where(cast({y}, 'f32') < 0, -np.abs({x}), np.abs({x}))"),
    Template("f", "{x}.clip(-0.75, 1.25)", "np.clip({x}, -0.75, 1.25)"),
    *_same("f", "-{x}", "{x} * {c}", "{x} + {c}", "{c} - {x}", "2.5 ** {x}.clip(-3, 3)"),
    Template("n", "{x} + {y}", "cast({x}, {P}) + cast({y}, {P})"),
    Template("n", "{x} - {y}", "cast({x}, {P}) - cast({y}, {P})"),
    Template("n", "{x} * {y}", "cast({x}, {P}) * cast({y}, {P})"),
    Template("n", "{x}.multiply_add({y}, {z})", "cast({x}, {P}) * cast({y}, {P}) + cast({z}, {P})"),
    Template("n", "{x}.maximum({y})", "np.maximum(cast({x}, {P}), cast({y}, {P}))"),
    Template("n", "{x}.minimum({y})", "np.minimum(cast({x}, {P}), cast({y}, {P}))"),
    Template("n", "Tensor.where({b}, {x}, {y})", "np.where({b}, cast({x}, {P}), cast({y}, {P}))"),
    *(
        Template("n", f"{{x}} {op} {{y}}", f"cast({{x}}, {{P}}) {op} cast({{y}}, {{P}})")
        for op in ("<", ">", "<=", ">=", "==", "!=")
    ),
    Template("n", "{x}.isclose({y}, 0.25)", "np.isclose(cast({x}, 'f32'), cast({y}, 'f32'), 0.25)"),
    *_same("n", "{x} ** 2", "{x} ** 3", "{x} + {k}", "{x} * {k}"),
    Template("n", "Tensor.where({x} > 0, {x}, 1) * {x}", "np.where({x} > 0, {x}, 1) * {x}"),
    Template("i", "{x} // ({j} | 1)", "cast({x}, {P}) // cast({j} | 1, {P})"),
    Template("i", "{x} % ({j} | 1)", "cast({x}, {P}) % cast({j} | 1, {P})"),
    *(
        Template("i", f"{{x}} {op} {{j}}", f"cast({{x}}, {{P}}) {op} cast({{j}}, {{P}})")
        for op in "&|^"
    ),
    *_same("i", "{x} >> {k}", "{x} << {k}", "~{x}", "-{x}"),
    Template("i", "({x} & 15).sqrt()", "np.sqrt(cast({x} & 15, 'f32'))"),
    *(Template("b", f"{{x}} {op} {{b}}", f"{{x}} {op} {{b}}") for op in "&|^"),
    *_same("b", "~{x}"),
]

CASTS = [
    Template("f", "{x}.cast(dtype.f16)", "{x}"),
    Template("f", "{x}.cast(dtype.f16).cast(dtype.f32)", "{x}"),
    Template("f", "{x}.cast(dtype.f32)", "{x}"),
    Template(
        "f", "({x} * 9).clip(-99, 99).cast(dtype.i8)", "cast(np.clip({x} * 9, -99, 99), 'i8')"
    ),
    Template("f", "({x} * 9).clip(0, 200).cast(dtype.u8)", "cast(np.clip({x} * 9, 0, 200), 'u8')"),
    Template("f", "({x} * 99).cast(dtype.i32)", "cast({x} * 99, 'i32')"),
    Template("f", "({x} * 99).abs().cast(dtype.u32)", "cast(np.abs({x} * 99), 'u32')"),
    Template("n", "{x}.cast(dtype.bool_)", "cast({x}, 'bool')"),
    *(
        Template("i", f"{{x}}.cast(dtype.{d})", f"cast({{x}}, '{d}')")
        for d in ("i8", "u8", "i32", "u32", "f32")
    ),
    Template("i", "({x} & 100).cast(dtype.f16)", "cast({x} & 100, 'f16')"),
    *(
        Template("b", f"{{x}}.cast(dtype.{d})", f"cast({{x}}, '{d}')")
        for d in ("u8", "i32", "f16", "f32")
    ),
]

REDUCTIONS = [
    *(
        Template(
            "n",
            f"{{x}}.{f}({{axes}}, keepdims={{keep}})",
            f"np.{f}({{x}}, {{axes}}, keepdims={{keep}})",
        )
        for f in ("sum", "max", "min", "mean", "var")
    ),
    *(
        Template("b", f"{{x}}.{f}({{axes}})", f"np.{f}({{x}}, {{axes}})")
        for f in ("sum", "max", "min")
    ),
    Template("f", "{x}.std({axes})", "np.std({x}, {axes})"),
    Template("f", "{x}.var({longaxis}, correction=1)", "np.var({x}, {longaxis}, ddof=1)"),
    Template("f", "{x}.variance({axes})", "np.var({x}, {axes})"),
    Template("n", "{x}.prod({shortaxis})", "np.prod({x}, {shortaxis})"),
    Template(
        "f",
        "{x}.logsumexp({axes}, keepdims={keep})",
        "np.log(np.exp({x}).sum({axes}, keepdims={keep}))",
    ),
    Template("f", "{x}.softmax({axis})", "np.exp({x}) / np.exp({x}).sum({axis}, keepdims=True)"),
    Template(
        "f", "{x}.log_softmax({axis})", "{x} - np.log(np.exp({x}).sum({axis}, keepdims=True))"
    ),
    *(
        Template(
            "n",
            f"{{x}}.{f}({{axis}}, keepdims={{keep}})",
            f"np.{f}({{x}}, {{axis}}, keepdims={{keep}})",
        )
        for f in ("argmax", "argmin")
    ),
    Template("n", "{x}.cumsum({axis})", "np.cumsum({x}, {axis})"),
    Template("n", "{x}.cumprod({shortaxis})", "np.cumprod({x}, {shortaxis})"),
    Template("n", "{x}.cummax({axis})", "np.maximum.accumulate({x}, {axis})"),
    Template("n", "{x}.sort({axis})", "np.sort({x}, {axis})"),
    Template("n", "{x}.sort({axis}, descending=True)", "np.flip(np.sort({x}, {axis}), {axis})"),
    Template("n", "{x}.argsort({axis})", "np.argsort({x}, {axis}, kind='stable')"),
    Template("n", "{x}.topk(1, {axis})[0]", "np.max({x}, {axis}, keepdims=True)"),
]

SHAPES = [
    *_same(
        "*",
        "{x}.reshape({shape})",
        "{x}[{key}]",
        "{x}.flatten()",
        "{x}.repeat({k} + 1, {axis})",
        "{x}[{ints}]",
        "{x}[..., :0]",
    ),
    Template("*", "{x}.permute({order})", "np.transpose({x}, ({order},))"),
    Template("*", "{x}.transpose({axis}, {axis2})", "np.swapaxes({x}, {axis}, {axis2})"),
    Template("*", "{x}.broadcast_to({wider})", "np.broadcast_to({x}, {wider})"),
    Template(
        "*",
        "{x}.unsqueeze({axis}).expand({expanded})",
        "np.repeat(np.expand_dims({x}, {axis}), 3, {axis})",
    ),
    Template("*", "{x}.unsqueeze({axis}).squeeze({axis})", "{x}"),
    Template("*", "{x}.flatten({axis}, -1)", "{x}.reshape(*{x}.shape[: {axis} % {x}.ndim], -1)"),
    Template("*", "{x}.pad({pads})", "np.pad({x}, ({pads},))"),
    Template("*", "{x}.shrink({box})", "{x}[tuple(slice(*b) for b in ({box},))]"),
    Template("*", "{x}.stride({steps})", "{x}[tuple(slice(None, None, s) for s in ({steps},))]"),
    Template("*", "{x}.flip({axis})", "np.flip({x}, {axis})"),
    Template(
        "*",
        "{x}.pad({pads}).stride({steps})",
        "np.pad({x}, ({pads},))[tuple(slice(None, None, s) for s in ({steps},))]",
    ),
    Template("*", "{x}.split([{at}], {longaxis})[1]", "np.split({x}, [{at}], {longaxis})[1]"),
    Template(
        "n",
        "Tensor.concat([{x}, {other}], {axis})",
        "np.concatenate([cast({x}, {P}), cast({other}, {P})], {axis})",
    ),
    Template(
        "n",
        "Tensor.stack([{x}, {same}], {axis})",
        "np.stack([cast({x}, {P}), cast({same}, {P})], {axis})",
    ),
    Template("*", "{x}.tril({c2})", "np.tril({x}, {c2})"),
    Template("*", "{x}.triu({c2})", "np.triu({x}, {c2})"),
    Template("*", "{x}.contiguous()", "{x}"),
    Template("f", "{x}.detach()", "hold({x})"),
]

ELEMENTS = [
    Template("*", "{x}[{j} % {n}]", "{x}[{j} % {n}]"),
    Template("*", "{x}.gather({j} % {n})", "{x}[{j} % {n}]"),
    Template("*", "{x}[{j} % {n}, ..., 0]", "{x}[{j} % {n}, ..., 0]"),
    Template("*", "{x}[..., np.array({mask})]", "{x}[..., np.array({mask})]"),
    Template("*", "{x}.take({ints}, 0)", "np.take({x}, {ints}, 0)"),
    Template(
        "*",
        "{x}.take_along_axis(np.array({lines}), {axis})",
        "np.take_along_axis({x}, np.array({lines}), {axis})",
    ),
    Template("n", "{x}.take_along_axis({x}.argsort({axis}), {axis})", "np.sort({x}, {axis})"),
    Template(
        "n",
        "{x}.scatter({axis}, np.array({lines}), {x}.max())",
        "put({x}, {axis}, np.array({lines}), np.max({x}))",
    ),
    Template(
        "n",
        "{x}.scatter_add({axis}, np.array({lines}), {x}.take_along_axis(np.array({lines}), {axis}))",
        "added({x}, {axis}, np.array({lines}), np.take_along_axis({x}, np.array({lines}), {axis}))",
    ),
    Template("i", "({x} & 7).one_hot(6, dtype.f32)", "np.eye(8)[{x} & 7][..., :6]"),
]

PRODUCTS = [
    *_same(
        "f",
        "{matrix} @ {right}",
        "{fit_5_4} @ {fit_4_7}",
        "{fit_2_3_5} @ {fit_5_4}",
        "{fit_9} @ {fit_9_3}",
        "{fit_6_17} @ {fit_17}",
    ),
    *(
        Template("f", f"Tensor.einsum({formula!r}, {fits})", f"np.einsum({formula!r}, {fits})")
        for formula, fits in {
            "ij,kj->ik": "{fit_3_5}, {fit_4_5}",
            "bij,bjk->bki": "{fit_2_3_5}, {fit_2_5_4}",
            "ii->i": "{fit_5_5}",
            "ij->j": "{matrix}",
            "bi,bj,j->bi": "{fit_4_3}, {fit_4_5}, {fit_5}",
            "i,j": "{fit_4}, {fit_3}",
        }.items()
    ),
    Template(
        "f",
        "nn.attention({fit_2_5_4}, {fit_2_7_4}, {fit_2_7_3})",
        "attend({fit_2_5_4}, {fit_2_7_4}, {fit_2_7_3}, 0)",
    ),
    Template(
        "f",
        "{fit_1_4_5_4}.conv2d({fit_3_4_3_2}, padding=1)",
        "conv({fit_1_4_5_4}, {fit_3_4_3_2}, 1, 1)",
    ),
    Template(
        "f",
        "{fit_2_4_6_5}.conv2d({fit_2_2_3_2}, stride=2, dilation=2, groups=2)",
        "conv({fit_2_4_6_5}, {fit_2_2_3_2}, 2, 0, 2, 2)",
    ),
    Template(
        "f",
        "{fit_1_3_4_3}.conv_transpose2d({fit_3_2_3_3}, stride=2, padding=1)",
        "spread({fit_1_3_4_3}, {fit_3_2_3_3}, 2, 1)",
    ),
    Template(
        "f",
        "{fit_2_5_6}.max_pool2d(3, stride=2, padding=1)",
        "pooled({fit_2_5_6}[:, None], np.max, 3, 2, 1, -np.inf)[:, 0]",
    ),
    Template("f", "{fit_2_5_6}.avg_pool2d(2)", "pooled({fit_2_5_6}[:, None], np.mean, 2, 2)[:, 0]"),
    Template("f", "{fit_3_5}.interpolate((7, 3), 'linear')", "linear({fit_3_5}, (7, 3))"),
    Template(
        "f",
        "{fit_3_5}.interpolate((7, 3))",
        "{fit_3_5}[np.arange(7) * 3 // 7][:, np.arange(3) * 5 // 3]",
    ),
]

PRODUCTS += [
    Template("f", "nn.nll_loss({matrix}, {x}.argmax(1))", "-np.max({matrix}, 1).mean()"),
    Template(
        "f",
        "nn.cross_entropy({matrix}, {x}.argmax(1))",
        "-np.max({matrix} - np.log(np.exp({x}).sum(1, keepdims=True)), 1).mean()",
    ),
    Template("f", "{x} * {x}.full_like(3)", "{x} * 3"),
    Template("f", "{fit_3_5} * Tensor.arange(5)", "{fit_3_5} * np.arange(5)"),
    Template("f", "{fit_3_5} - Tensor.eye(3, 5)", "{fit_3_5} - np.eye(3, 5)"),
    Template(
        "f",
        "Tensor.einsum('...ij,kj->...k', {fit_2_3_4}, {fit_3_4})",
        "np.einsum('...ij,kj->...k', {fit_2_3_4}, {fit_3_4})",
    ),
]

FAMILIES = (ELEMENTWISE, ELEMENTWISE, CASTS, REDUCTIONS, SHAPES, SHAPES, ELEMENTS, PRODUCTS)
