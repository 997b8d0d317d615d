"""Bringing what a tile works with into local memory.

Values of a tile go there if all factors of its products fit, and then as many of the matrices that
every tile multiplies with as still fit, copied once a group. What does not fit passes through
local memory slice by slice, as in products outside of blocks, or in float32, by groups that have
several tiles or no room for slices, is read where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgmlp.engine.ir.dtype import DType, f16, f32
from imgmlp.engine.ir.graph import Buffer, Node, buffer, const, make, move
from imgmlp.engine.ir.kernel import Kernel, Store, access, part_begin, storage
from imgmlp.engine.ir.local_memory import CHUNK, LocalBuffer
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import FACTORS, LOCAL, SLICE, Multiply
from imgmlp.engine.ir.view import View
from imgmlp.engine.tiling.tile_memory import TileBuffers, moved, share

SLICES = 20 << 10  # bytes of both factors' slices without matrix units
# Of float32's matrices those without a copy are read where they are, not slice by slice, if they
# have so many bytes at most: then the cache beside local memory holds them.
MOST_FAR = 48 << 10
# Elements up to which a value that no product takes is worth the room; larger ones if all fit.
SMALL = 1024
COPY = "copy"  # names of kernels that copy a matrix


def bring(
    kernels: Sequence[Kernel],
    buffers: TileBuffers,
    places: Mapping[Buffer, Node],
    multiply: Multiply,
) -> tuple[list[Kernel], list[Kernel]] | None:
    """The kernels of a tile with values in local memory, and those once a group; None if they do
    not fit there. `places` says where the value of each of the tile's `buffers` lies. Without
    matrix units factors of products stay where they are."""
    tile = kernels, buffers, places, multiply
    found = _brought(*tile, SMALL)
    if found is None or multiply not in FACTORS:
        return found
    for halved in (LOCAL, SMALL) if multiply == "half" else (LOCAL,):
        larger = _brought(*tile, LOCAL, halved)
        if larger and _copies(larger[1]) == _copies(found[1]):
            return larger
    return found


def _copies(before: Sequence[Kernel]) -> int:
    return sum(k.name == COPY for k in before)


def _brought(
    kernels: Sequence[Kernel],
    buffers: TileBuffers,
    places: Mapping[Buffer, Node],
    multiply: Multiply,
    most: int,
    halved: int = LOCAL,
) -> tuple[list[Kernel], list[Kernel]] | None:
    """The same where other values than factors have so many elements at most; with more than
    `halved` they lie there as halves, as factors do."""
    stored = FACTORS.get(multiply)
    factors = {storage(s) for k in kernels if (core := _product(k)) for s in core.src}
    near: dict[Node, Node] = {}
    found: TileBuffers = dict(buffers)
    for value, place in places.items():
        factor = value in factors
        if factor and stored is None:
            continue
        if factor and not _lies_as_factor(place):
            return None
        if factor or place.size <= most:
            lies = factor or (place.size > halved and _lies_as_factor(place))
            kept = stored if lies else None
            local = LocalBuffer.of(place.shape, place.dtype, kept, value.name)
            near[place] = local.place
            found[local] = buffer(local)
            del found[value]
    kernels = share([moved(k, near) for k in kernels], found)
    touched = {b for k in kernels for b in (*k.reads(), *k.writes())}
    assert not touched & (buffers.keys() - found.keys()), "a Buffer is read as another value"
    if not all(_readable(core) for k in kernels if (core := _product(k))):
        return None
    taken = list(
        dict.fromkeys(b for k in kernels for b in k.writes() if isinstance(b, LocalBuffer))
    )
    left = LOCAL - sum(b.local_bytes for b in taken)
    if stored is None:
        return (kernels, []) if left >= SLICES else None
    if left < 0:
        return None
    copied = _copied(kernels, left, stored)
    if copied is None:
        return None
    kernels, copies = copied
    zeros = [b for b in taken if b.padded]
    stores = [Store(buffer(b), const(0, f32, b.shape)) for b in zeros]
    cleared = [Kernel("clear", s.place.shape, (s,), None) for s in stores]
    return kernels, [*cleared, *copies]


def _lies_as_factor(place: Node) -> bool:
    return len(place.shape) == 2 and place.dtype is f32


def _product(kernel: Kernel) -> Node | None:
    return kernel.core if kernel.core is not None and kernel.core.op is Op.DOT else None


def _staged(kernels: Sequence[Kernel]) -> int:
    """How many factors' slices some product needs, 0 to 2."""
    cores = [core for k in kernels if (core := _product(k))]
    return sum(any(not isinstance(storage(c.src[i]), LocalBuffer) for c in cores) for i in (0, 1))


def _readable(core: Node) -> bool:
    """Whether matrix units may read the factors that are in local memory: whole chunks of lines,
    and beyond the last element of a value, where there is one, zeros."""
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
    whole = first % CHUNK == 0 and (width % CHUNK == 0 or first + width == columns)
    return whole and view.shape[1 - across] == rows


def _steps(view: View, axis: int, stride: int) -> bool:
    """Whether an axis has this stride, or but one element and so any."""
    return view.shape[axis] == 1 or view.strides[axis] == stride


# --- matrices that every tile multiplies with ---


def _copied(
    kernels: Sequence[Kernel], left: int, stored: DType
) -> tuple[list[Kernel], list[Kernel]] | None:
    """Kernels that read copies of right factors that fit into the bytes left, and those that copy.

    None if the others can neither pass by nor be read where they are.
    """
    written = {b for k in kernels for b in k.writes()}
    wanted = dict.fromkeys(m for k in kernels if (m := _matrix(k, written)) is not None)
    copies: dict[Node, LocalBuffer] = {}
    for matrix in wanted:
        copies[matrix] = LocalBuffer.of(matrix.shape, f32, stored, f"near{len(copies)}")
    while True:
        changed = [_with_copy(k, written, copies) for k in kernels]
        far = sum(m.size * f32.itemsize for m in wanted if m not in copies)
        slices = SLICE * _staged(changed) if stored is f16 else 0
        if sum(c.local_bytes for c in copies.values()) + slices <= left:
            before = [_copy(matrix, c) for matrix, c in copies.items()]
            return (changed, before) if stored is f16 or far <= MOST_FAR else None
        if not copies:
            return None
        largest = max(c.local_bytes for c in copies.values())
        del copies[[m for m, c in copies.items() if c.local_bytes == largest][-1]]


def _matrix(kernel: Kernel, written: set[Buffer]) -> Node | None:
    """A product's right factor that lasts, turned so that neighbours of a row lie together."""
    core = _product(kernel)
    if core is None or len(core.shape) != 2 or not isinstance(storage(core.src[0]), LocalBuffer):
        return None
    right = core.src[1]
    if storage(right) in written or isinstance(storage(right), LocalBuffer):
        return None
    if part_begin(right).variables():  # rows of a tile's own
        return None
    return right.src[0] if right.op is Op.PERMUTE else right


def _with_copy(kernel: Kernel, written: set[Buffer], copies: Mapping[Node, LocalBuffer]) -> Kernel:
    matrix = _matrix(kernel, written)
    if matrix is None or matrix not in copies:
        return kernel
    core, near = kernel.core, copies[matrix].place
    assert core is not None
    right = near if core.src[1] is matrix else move(Op.PERMUTE, near, core.src[1].arg)
    product = make(Op.DOT, (core.src[0], right), core.arg, core.shape, core.dtype)
    return moved(kernel, {core: product})


def _copy(matrix: Node, local: LocalBuffer) -> Kernel:
    beyond = tuple((0, n - have) for n, have in zip(local.shape, matrix.shape, strict=True))
    value = move(Op.PAD, matrix, beyond)
    return Kernel(COPY, local.shape, (Store(buffer(local), value),), None)
