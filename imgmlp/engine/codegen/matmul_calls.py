"""OpenCL C for matrix products: calls of kernels/product_one.cl and kernels/product_group.cl.

Calls for matrix units are in matrix_units.py. This module must know neither loops nor what is
computed from a tile's elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imgmlp.engine.codegen.matrix_units import product_calls as matrix_unit_calls
from imgmlp.engine.codegen.matrix_units import tile_size
from imgmlp.engine.ir.dtype import DType
from imgmlp.engine.ir.target import FACTOR_DTYPES, LANES_PER_GROUP, Target
from imgmlp.engine.ir.uops import Code, Product, U, UOp


@dataclass(frozen=True)
class ProductCalls:
    """The text of a kernel's UOps about products, by a method with the name of each UOp."""

    code: Code
    target: Target
    vectors: Mapping[int, int]  # numbers of UOps whose values are vectors, and their widths

    @property
    def matrix_unit_dtype(self) -> DType | None:
        """The dtype of factors in local memory for matrix units; None without matrix units."""
        return FACTOR_DTYPES.get(self.target.product_mode)

    def product(self, i: int, u: UOp) -> Iterator[str]:
        p: Product = u.arg
        if p.is_in_registers:
            yield from self._in_registers(i, u)
            return
        rows, columns = (
            tile_size(p.tile_rows, p.rows_left),
            tile_size(p.tile_columns, p.columns_left),
        )
        left = f"data{u.src[0]} + {p.left_offset.render('/')}, "
        left += f"{p.left_row_stride}, {p.left_term_stride}"
        right = _right(u.src[1], p)
        sizes = f"{rows}, {columns}, {p.terms}"
        if self.target.lanes == "one":
            elements = p.tile_rows * self.target.vector_pair_width
            yield f"float v{i}[{elements}] __attribute__((aligned(64)));"
            kind = "direct" if p.can_load_right_vectors else "packed"
            yield f"tile_product_{kind}(v{i}, {left}, {right}, {sizes});"
        elif self.matrix_unit_dtype:
            yield from matrix_unit_calls(self.code, u)
        else:
            tile = f"v{u.src[2]}"
            factors = f"{left}, {int(p.is_left_aligned)}, {right}, {int(p.is_right_aligned)}"
            yield f"{tile}_sums += tile_product_{p.name}({tile}, workspace, {factors}, {sizes});"

    def _in_registers(self, i: int, u: UOp) -> Iterator[str]:
        """A product whose tile is in registers; in private memory if variables index it."""
        p: Product = u.arg
        if p.runs_along_terms:
            yield from self._along(i, u)
            return
        left, right = u.src[:2]
        shape, rows = f"{p.tile_rows}, {p.tile_columns // p.vector_width}", p.tile_rows
        a = f"data{left} + {p.left_offset.render('/')}, {p.left_row_stride}, {p.left_term_stride}"
        b = f"__private, v{right}, {p.tile_columns}"
        if self.code.uops[right].op is U.GLOBAL:
            b = f"__global, data{right} + {p.right_offset.render('/')}, {p.right_term_stride}"
        limit = str(rows) if p.rows_left is None else p.rows_left.render("/")
        vectors = self._in_vectors(i)
        name = f"v{i}" if vectors else f"sums{i}"
        size = "" if p.vector_width == self.target.vector_width else f"_{p.vector_width}"
        yield f"PRODUCT{size}({shape}, {name}, {a}, {b}, {limit}, {p.terms})"
        if not vectors:
            yield f"TO_MEMORY{size}({shape}, v{i}, {name})"

    def _along(self, i: int, u: UOp) -> Iterator[str]:
        """The same for tiles whose vectors take neighbouring terms."""
        p: Product = u.arg
        rows, columns = p.tile_rows, p.tile_columns
        a = f"data{u.src[0]} + {p.left_offset.render('/')}, {p.left_row_stride}"
        b = f"data{u.src[1]} + {p.right_offset.render('/')}, {p.right_column_stride}"
        limit = str(rows) if p.rows_left is None else p.rows_left.render("/")
        vectors = self._in_vectors(i)
        name = f"v{i}" if vectors else f"sums{i}"
        eights = -(-rows * columns // 8)
        yield f"DOT_PRODUCTS({rows}, {columns}, {eights}, {name}, {a}, {b}, {limit}, {p.terms})"
        if not vectors:
            yield f"const float *v{i} = (const float *){name};"

    def _in_vectors(self, i: int) -> bool:
        """Whether all readers of a tile take several columns at once."""
        users = (e for e, other in enumerate(self.code.uops) if other.op is U.ELEMENT)
        return all(e in self.vectors for e in users if self.code.uops[e].src == (i,))

    def tile(self, i: int, u: UOp) -> Iterator[str]:
        """The registers of a lane for its elements of the group's tile."""
        rows, columns = u.arg
        sums = f"v{i}_sums[4] = {{0.f}}" if self.matrix_unit_dtype else f"v{i}_sums = 0.f"
        yield f"float v{i}[{rows * columns // LANES_PER_GROUP}] = {{0.f}}, {sums};"

    def share_tile(self, i: int, u: UOp) -> Iterator[str]:
        yield f"spread_{u.arg.name}(workspace, v{u.src[0]});"

    def panel(self, i: int, u: UOp) -> Iterator[str]:
        p: Product = u.arg
        columns, width = tile_size(p.tile_columns, p.columns_left), p.tile_columns
        yield f"float v{i}[{p.terms * width}] __attribute__((aligned(64)));"
        yield f"pack_panel(v{i}, {_right(u.src[0], p)}, {columns}, {width}, {p.terms});"

    def column_sums(self, i: int, u: UOp) -> Iterator[str]:
        p: Product = u.arg
        if self.matrix_unit_dtype:
            yield f"tile_columns_{p.name}(columns, v{u.src[1]}_sums);"
            yield f"const float v{i}[1] = {{columns[get_local_id(0)]}};"
        elif self.target.lanes == "group":
            yield f"const float v{i}[1] = {{v{u.src[1]}_sums}};"
        else:
            columns = tile_size(p.tile_columns, p.columns_left)
            yield f"float v{i}[{self.target.vector_pair_width}] __attribute__((aligned(64)));"
            yield f"column_sums(v{i}, {_right(u.src[0], p)}, {columns}, {p.terms});"

    def element(self, i: int, u: UOp) -> str:
        """The expression for an element of a tile, or for a vector of elements."""
        name = f"v{u.src[0]}"
        if len(u.arg) == 3:
            return f"{name}[{u.arg[2].render('/')}]"
        row, column = u.arg
        if self.target.lanes == "group":
            return f"workspace[{row.render('/')} * TILE_PITCH + {column.render('/')}]"
        cell = f"{row} * {self.code.uops[u.src[0]].arg.tile_columns} + {column}"
        return f"{name}[({cell}) / {self.vectors[i]}]" if i in self.vectors else f"{name}[{cell}]"


def _right(data: int, p: Product) -> str:
    """The right factor as arguments of a call."""
    return (
        f"data{data} + {p.right_offset.render('/')}, {p.right_term_stride}, {p.right_column_stride}"
    )
