"""Staging: values of a tile and matrices that it multiplies with go to local memory.

In: the kernels of a tile on a GPU. Out: the same kernels with values in LocalBuffers, and kernels
that each group runs once; or None.

Values of a tile go to local memory if all factors of its products fit there. After that go as many
of the matrices that every tile multiplies with as still fit, copied once a group; the largest stay
out first. Other matrices pass through local memory slice by slice, as in products outside of
blocks. In float32 they are read where they are, by groups that have several tiles or no room for
slices. Without matrix units factors of products stay in global memory. All must fit in
LOCAL_MEMORY_BYTES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgmlp.engine.ir.dtype import DType, f16, f32
from imgmlp.engine.ir.graph import Buffer, Node, buffer, const, make, move
from imgmlp.engine.ir.kernel import Kernel, Store, access, part_begin, storage
from imgmlp.engine.ir.local_memory import ELEMENTS_PER_READ, LocalBuffer
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import (
    FACTOR_DTYPES,
    FACTOR_SLICE_BYTES,
    LOCAL_MEMORY_BYTES,
    ProductMode,
)
from imgmlp.engine.ir.view import View
from imgmlp.engine.tiling.tile_memory import TileBuffers, replace_nodes, share_buffers

SLICE_BYTES_WITHOUT_MATRIX_UNITS = 20 << 10  # local memory for slices of both factors
# Bytes of float32 matrices that are read where they are, without a copy in local memory: so many
# fit in the cache beside local memory.
MAX_UNSTAGED_BYTES = 48 << 10
# Elements of a value that is no factor of a product and is staged nevertheless. Larger ones are
# staged only if that displaces no copy of a matrix.
MAX_SMALL_ELEMENTS = 1024
COPY_KERNEL = "copy"  # the name of kernels that copy a matrix


def stage_in_local_memory(
    kernels: Sequence[Kernel],
    buffers: TileBuffers,
    places: Mapping[Buffer, Node],
    product_mode: ProductMode,
) -> tuple[list[Kernel], list[Kernel]] | None:
    """The kernels of a tile with values in local memory, and the kernels that each group runs once.

    None if the values do not fit. `places` has the place of the value in each of the `buffers`.
    """
    tile = kernels, buffers, places, product_mode
    staged = _stage(*tile, MAX_SMALL_ELEMENTS)
    if staged is None or product_mode not in FACTOR_DTYPES:
        return staged
    for max_whole_elements in (
        (LOCAL_MEMORY_BYTES, MAX_SMALL_ELEMENTS)
        if product_mode == "half"
        else (LOCAL_MEMORY_BYTES,)
    ):
        larger = _stage(*tile, LOCAL_MEMORY_BYTES, max_whole_elements)
        if larger and _count_copies(larger[1]) == _count_copies(staged[1]):
            return larger
    return staged


def _count_copies(before: Sequence[Kernel]) -> int:
    return sum(k.name == COPY_KERNEL for k in before)


def _stage(
    kernels: Sequence[Kernel],
    buffers: TileBuffers,
    places: Mapping[Buffer, Node],
    product_mode: ProductMode,
    max_elements: int,
    max_whole_elements: int = LOCAL_MEMORY_BYTES,
) -> tuple[list[Kernel], list[Kernel]] | None:
    """The same, staging values other than factors if they have at most `max_elements` elements.

    Those of more than `max_whole_elements` are stored like factors, which may be in half precision.
    """
    stored = FACTOR_DTYPES.get(product_mode)
    factors = {storage(s) for k in kernels if (core := _product(k)) for s in core.src}
    if stored is not None and not all(_lies_as_factor(places[v]) for v in factors & places.keys()):
        return None
    local_places: dict[Node, Node] = {}
    remaining: TileBuffers = dict(buffers)
    for value, place in places.items():
        is_factor = value in factors
        is_staged = stored is not None if is_factor else place.size <= max_elements
        if is_staged:
            is_large_matrix = place.size > max_whole_elements and _lies_as_factor(place)
            dtype = stored if is_factor or is_large_matrix else None
            local = LocalBuffer.of(place.shape, place.dtype, dtype, value.name)
            local_places[place] = local.place
            remaining[local] = buffer(local)
            del remaining[value]
    kernels = share_buffers([replace_nodes(k, local_places) for k in kernels], remaining)
    touched = {b for k in kernels for b in (*k.reads(), *k.writes())}
    assert not touched & (buffers.keys() - remaining.keys()), "a Buffer is read as another value"
    if not all(_readable(core) for k in kernels if (core := _product(k))):
        return None
    taken = list(
        dict.fromkeys(b for k in kernels for b in k.writes() if isinstance(b, LocalBuffer))
    )
    free_bytes = LOCAL_MEMORY_BYTES - sum(b.local_bytes for b in taken)
    if stored is None:
        return (kernels, []) if free_bytes >= SLICE_BYTES_WITHOUT_MATRIX_UNITS else None
    if free_bytes < 0:
        return None
    copied = _copy_matrices(kernels, free_bytes, stored)
    if copied is None:
        return None
    kernels, copies = copied
    return kernels, [*(_clearing_kernel(b) for b in taken if b.is_padded), *copies]


def _clearing_kernel(local: LocalBuffer) -> Kernel:
    store = Store(buffer(local), const(0, f32, local.shape))
    return Kernel("clear", store.place.shape, (store,), None)


def _lies_as_factor(place: Node) -> bool:
    return len(place.shape) == 2 and place.dtype is f32


def _product(kernel: Kernel) -> Node | None:
    return kernel.core if kernel.core is not None and kernel.core.op is Op.DOT else None


def _count_sliced_sides(kernels: Sequence[Kernel]) -> int:
    """How many of the two factors some product reads slice by slice."""
    cores = [core for k in kernels if (core := _product(k))]
    return sum(any(not isinstance(storage(c.src[i]), LocalBuffer) for c in cores) for i in (0, 1))


def _readable(core: Node) -> bool:
    """Whether matrix units can read a product's factors in local memory: as whole chunks of lines,
    with zeros beyond the last element of a value."""
    local = [s for s in core.src if isinstance(storage(s), LocalBuffer)]
    return not local or (len(core.shape) == 2 and all(_in_chunks(s) for s in local))


def _in_chunks(factor: Node) -> bool:
    local, views = storage(factor), access(factor).views
    assert isinstance(local, LocalBuffer)
    if len(views) != 1 or views[0].mask is not None or not local.pitch:
        return False
    (view,), (rows, columns) = views, local.extent
    ways = [a for a in (0, 1) if _steps(view, a, 1) and _steps(view, 1 - a, local.pitch)]
    if not ways:
        return False
    across = ways[0]  # the axis of which neighbours lie together
    first, width = view.offset % local.pitch, view.shape[across]
    whole = first % ELEMENTS_PER_READ == 0 and (
        width % ELEMENTS_PER_READ == 0 or first + width == columns
    )
    return whole and view.shape[1 - across] == rows


def _steps(view: View, axis: int, stride: int) -> bool:
    """Whether an axis has this stride, or only one element."""
    return view.shape[axis] == 1 or view.strides[axis] == stride


# --- matrices that every tile multiplies with ---


def _copy_matrices(
    kernels: Sequence[Kernel], free_bytes: int, stored: DType
) -> tuple[list[Kernel], list[Kernel]] | None:
    """Kernels that read copies of as many right factors as fit, and the kernels that copy them.

    None if the other factors can neither pass through local memory nor be read where they are.
    """
    written = {b for k in kernels for b in k.writes()}
    wanted = dict.fromkeys(m for k in kernels if (m := _matrix(k, written)) is not None)
    copies: dict[Node, LocalBuffer] = {}
    for matrix in wanted:
        copies[matrix] = LocalBuffer.of(matrix.shape, f32, stored, f"near{len(copies)}")
    while True:
        changed = [_with_copy(k, written, copies) for k in kernels]
        far = sum(m.size * f32.itemsize for m in wanted if m not in copies)
        slices = FACTOR_SLICE_BYTES * _count_sliced_sides(changed) if stored is f16 else 0
        if sum(c.local_bytes for c in copies.values()) + slices <= free_bytes:
            before = [_copy(matrix, c) for matrix, c in copies.items()]
            return (changed, before) if stored is f16 or far <= MAX_UNSTAGED_BYTES else None
        if not copies:
            return None
        largest = max(c.local_bytes for c in copies.values())
        del copies[[m for m, c in copies.items() if c.local_bytes == largest][-1]]


def _matrix(kernel: Kernel, written: set[Buffer]) -> Node | None:
    """A product's right factor if all tiles share it, as the matrix whose rows are contiguous."""
    core = _product(kernel)
    if core is None or len(core.shape) != 2 or not isinstance(storage(core.src[0]), LocalBuffer):
        return None
    right = core.src[1]
    if storage(right) in written or isinstance(storage(right), LocalBuffer):
        return None
    if part_begin(right).variables():  # rows of one tile
        return None
    return right.src[0] if right.op is Op.PERMUTE else right


def _with_copy(kernel: Kernel, written: set[Buffer], copies: Mapping[Node, LocalBuffer]) -> Kernel:
    matrix = _matrix(kernel, written)
    if matrix is None or matrix not in copies:
        return kernel
    core, local_places = kernel.core, copies[matrix].place
    assert core is not None
    right = (
        local_places if core.src[1] is matrix else move(Op.PERMUTE, local_places, core.src[1].arg)
    )
    product = make(Op.DOT, (core.src[0], right), core.arg, core.shape, core.dtype)
    return replace_nodes(kernel, {core: product})


def _copy(matrix: Node, local: LocalBuffer) -> Kernel:
    beyond = tuple((0, n - have) for n, have in zip(local.shape, matrix.shape, strict=True))
    value = move(Op.PAD, matrix, beyond)
    return Kernel(COPY_KERNEL, local.shape, (Store(buffer(local), value),), None)
