"""Paint mandrill.png, the picture this project shows, tests and compresses.

A compressor of pictures needs one of its own that is hard in every way: smooth shaded form,
hard edges, and directional detail up to the Nyquist limit.  This one is painted from nothing
but a seed: a lit relief for the skin, then more than a hundred thousand tapered strokes that
follow the lie of the fur.  It reads no other picture, and knows nothing of the package.

Lengths are in pixels of the finished picture.  "Face coordinates" have x = 0 on the midline
of an untilted head; `to_picture` poses them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Array = NDArray[Any]  # floating point; single precision where whole pictures are held
Rng = np.random.Generator
Knots = Sequence[tuple[float, float]]

SEED = 1758
SIDE = 512
STROKE_SCALE = 4  # strokes are opaque polygons; reducing 4:1 is what antialiases them
SKIN_SCALE = 2
SKIN = SIDE * SKIN_SCALE
TILT = np.deg2rad(-3.5)
ZOOM = 1.09
PIVOT = np.array([0.0, 270.0])  # the face point that tilting leaves in place
PLACED = np.array([257.0, 241.0])  # where the pivot lies in the picture
LIGHT = np.array([-0.50, -0.52, 0.69])
RIM_LIGHT = np.array([14.0, 26.0, 34.0])  # the cool sky behind, on the tips of the far side

# Half outlines in face coordinates, mirrored about x = 0.
HEAD = [(0, 68), (18, 74), (46, 98), (78, 126), (106, 160), (122, 210), (142, 270), (160, 330)]
HEAD += [(186, 390), (226, 440), (262, 500), (280, 600), (0, 600)]
BARE = [(0, 140), (30, 146), (64, 146), (76, 166), (74, 196), (84, 228), (90, 270), (90, 312)]
BARE += [(80, 344), (74, 378), (74, 414), (56, 428), (0, 426)]
EAR = (122.0, 176.0)

# Curves down the face: (y, half width).
STRIPE: Knots = [(150, 7), (185, 10), (230, 14), (285, 19), (325, 27), (345, 36)]
SWELLING: Knots = [(180, 24), (196, 44), (225, 64), (265, 78), (305, 83), (335, 76), (356, 64)]
RIDGES = 5
EYE = (41.0, 170.0)
NOSE_Y = 362.0
MOUTH_Y = 409.0

# The lie of the coat: x, y, direction x, y, length, colour.
COAT = np.array(
    [
        (0, 134, 0.0, -1.0, 14, 50, 43, 32),
        (0, 106, 0.0, -1.0, 32, 82, 71, 42),
        (0, 66, 0.0, -1.0, 40, 110, 92, 48),
        (50, 132, 0.35, -0.9, 14, 54, 46, 32),
        (46, 100, 0.35, -0.95, 30, 96, 84, 46),
        (80, 126, 0.75, -0.65, 28, 98, 88, 50),
        (86, 150, 0.95, -0.4, 16, 64, 57, 40),
        (104, 160, 0.95, -0.3, 21, 80, 72, 46),
        (112, 205, 1.0, -0.1, 26, 92, 84, 58),
        (84, 200, 1.0, 0.05, 16, 80, 73, 58),
        (126, 235, 1.0, 0.2, 46, 98, 90, 58),
        (96, 260, 0.95, 0.30, 24, 128, 122, 108),
        (140, 290, 0.95, 0.45, 54, 108, 97, 64),
        (92, 322, 0.85, 0.50, 34, 204, 198, 184),
        (120, 345, 0.85, 0.60, 50, 190, 181, 160),
        (80, 376, 0.80, 0.60, 40, 226, 218, 198),
        (150, 370, 0.75, 0.75, 58, 118, 102, 68),
        (30, 398, 0.55, 0.75, 7, 206, 196, 182),
        (0, 398, 0.0, 1.0, 7, 190, 176, 164),
        (78, 412, 0.65, 0.75, 34, 230, 216, 184),
        (52, 440, 0.35, 0.95, 46, 226, 158, 66),
        (0, 438, 0.0, 1.0, 36, 226, 148, 48),
        (0, 480, 0.0, 1.0, 64, 216, 116, 20),
        (50, 490, 0.15, 1.0, 66, 196, 104, 24),
        (112, 440, 0.50, 0.90, 62, 122, 96, 58),
        (200, 440, 0.65, 0.80, 64, 74, 66, 46),
        (240, 520, 0.60, 0.80, 64, 54, 48, 38),
    ],
    dtype=np.float32,
)


# ---------------------------------------------------------------------------- fields


def smoothstep(low: float, high: float, x: Array) -> Array:
    t = np.clip((x - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def bump(x: Array, y: Array, rx: float, ry: float) -> Array:
    """A round hill of height 1 that reaches 0 smoothly at the ellipse's edge."""
    return np.clip(1.0 - (x / rx) ** 2 - (y / ry) ** 2, 0.0, 1.0) ** 0.75


def curve(y: Array, knots: Knots) -> Array:
    """Knots joined smoothly: linear interpolation, then a Gaussian of 8 pixels along y."""
    at = np.arange(-40.0, SIDE + 200.0)
    line = np.interp(at, *np.array(knots, dtype=float).T)
    kernel = np.exp(-0.5 * (np.arange(-24, 25) / 8.0) ** 2)
    line = np.convolve(np.pad(line, 24, mode="edge"), kernel / kernel.sum(), mode="valid")
    return np.interp(y, at, line).astype(np.float32)


def noise(rng: Rng, cells: tuple[int, int], size: int = SKIN) -> Array:
    """Smooth noise, standard normal at its nodes: [size, size] from a grid of [rows, columns]."""
    grid = rng.standard_normal(cells).astype(np.float32)
    return np.asarray(Image.fromarray(grid).resize((size, size), Image.Resampling.BICUBIC))


def blur(field: Array, sigma: float) -> Array:
    """Gaussian blur of [rows, columns] by sigma samples, through the Fourier transform."""
    rows, columns = field.shape
    fy = np.fft.fftfreq(rows)[:, None]
    fx = np.fft.rfftfreq(columns)[None, :]
    gain = np.exp(-2.0 * (np.pi * sigma) ** 2 * (fx**2 + fy**2))
    return np.fft.irfft2(np.fft.rfft2(field) * gain, s=field.shape).astype(np.float32)


def sample(field: Array, points: Array, scale: float) -> Array:
    """The field's values at picture points [..., 2], nearest neighbour."""
    index = np.clip((points * scale).astype(int), 0, np.array(field.shape[1::-1]) - 1)
    return np.asarray(field[index[..., 1], index[..., 0]])


def to_picture(points: Array) -> Array:
    """Pose face points [..., 2]: tilt, enlarge and place them."""
    c, s = np.cos(TILT) * ZOOM, np.sin(TILT) * ZOOM
    turned = (points - PIVOT) @ np.array([[c, s], [-s, c]])
    return np.asarray(turned + PLACED, np.float32)


def face_grid(rng: Rng) -> tuple[Array, Array]:
    """Face coordinates of every skin sample, gently warped so that no half mirrors the other."""
    y, x = np.mgrid[0:SKIN, 0:SKIN].astype(np.float32) / SKIN_SCALE
    c, s = np.cos(TILT) / ZOOM, np.sin(TILT) / ZOOM
    dx, dy = x - PLACED[0], y - PLACED[1]
    warp_x, warp_y = noise(rng, (9, 9)) * 1.2, noise(rng, (9, 9)) * 1.2
    face_x = dx * c + dy * s + PIVOT[0] + warp_x
    return face_x.astype(np.float32), (dy * c - dx * s + PIVOT[1] + warp_y).astype(np.float32)


def half_mask(outline: Sequence[tuple[float, float]], soften: float) -> Image.Image:
    """A mirrored half outline as an "L" mask of face coordinates, x offset by 300."""
    mask = Image.new("L", (600, 620))
    ring = [(300 + x, y) for x, y in outline] + [(300 - x, y) for x, y in reversed(outline)]
    ImageDraw.Draw(mask).polygon(ring, fill=255)
    return mask.filter(ImageFilter.GaussianBlur(soften))


# ---------------------------------------------------------------------------- strokes


@dataclass
class Strokes:
    """Tapered polylines in picture coordinates; painted in order of falling `depth`."""

    path: Array  # [strokes, joints, 2]
    width: Array  # [strokes, joints]
    colour: Array  # [strokes, joints - 1, 3], 0..255
    depth: Array  # [strokes]


def draw(canvas: Image.Image, strokes: Strokes) -> None:
    """Paint every stroke as a chain of opaque quadrilaterals."""
    order = np.argsort(-strokes.depth, kind="stable")
    path = strokes.path[order] * STROKE_SCALE
    along = np.gradient(path, axis=1)
    along /= np.linalg.norm(along, axis=2, keepdims=True) + 1e-6
    across = along[..., ::-1] * [-0.5, 0.5] * (strokes.width[order] * STROKE_SCALE)[..., None]
    left, right = path + across, path - across
    quads = np.concatenate([left[:, :-1], left[:, 1:], right[:, 1:], right[:, :-1]], axis=2)
    rgb = np.clip(strokes.colour[order], 0, 255).astype(np.int64)
    inks = rgb[..., 0] + rgb[..., 1] * 256 + rgb[..., 2] * 65536
    pen = ImageDraw.Draw(canvas)
    for quad, ink in zip(quads.reshape(-1, 8).tolist(), inks.ravel().tolist(), strict=True):
        pen.polygon(quad, fill=ink)


def coat_at(points: Array) -> tuple[Array, Array, Array]:
    """Direction [n, 2], length [n] and colour [n, 3] of the coat at face points [n, 2]."""
    mirrored = np.abs(points[:, :1]), points[:, 1:]
    distance = (mirrored[0] - COAT[:, 0]) ** 2 + (mirrored[1] - COAT[:, 1]) ** 2
    weight = 1.0 / (distance + 120.0) ** 1.6
    weight /= weight.sum(axis=1, keepdims=True)
    blend = weight @ COAT[:, 2:]
    direction = blend[:, :2].copy()
    direction[:, 0] *= np.clip(points[:, 0] / 6.0, -1.0, 1.0)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True) + 1e-6
    return direction, blend[:, 2], blend[:, 3:]


def grow(roots: Array, length: Array, bend: Array, droop: float, joints: int = 6) -> Array:
    """Follow the coat from the roots: paths [n, joints, 2] in face coordinates."""
    path = [roots]
    for joint in range(joints - 1):
        direction = coat_at(path[-1])[0]
        turn = bend * (joint + 1) / joints
        c, s = np.cos(turn), np.sin(turn)
        turned = np.stack(
            [direction[:, 0] * c - direction[:, 1] * s, direction[:, 0] * s + direction[:, 1] * c],
            axis=1,
        )
        turned[:, 1] += droop * joint / joints
        path.append(path[-1] + turned * (length / (joints - 1))[:, None])
    return np.stack(path, axis=1).astype(np.float32)


def sow(rng: Rng, count: int, inner: Image.Image, outer: Image.Image) -> Array:
    """Random face points inside `outer` and outside `inner`: about count of them, [n, 2]."""
    points = rng.uniform([-300, 0], [300, 600], (count, 2)).astype(np.float32)
    column, row = points.astype(int).T
    allowed = np.asarray(outer, np.float32) * (255.0 - np.asarray(inner, np.float32)) / 65025.0
    kept = allowed[row, column + 300] > rng.uniform(0.15, 0.85, count)
    return np.asarray(points[kept])


# ---------------------------------------------------------------------------- fur


@dataclass(frozen=True)
class Layer:
    """One pass over the coat: locks of hairs that part at the root and meet at the tip."""

    locks: int
    hairs: int
    spread: float
    width: float
    length: float
    tone: float


UNDERCOAT = Layer(locks=16000, hairs=1, spread=0.0, width=7.0, length=1.1, tone=0.34)
LAYERS = [
    Layer(locks=16000, hairs=2, spread=2.5, width=3.4, length=1.10, tone=0.58),
    Layer(locks=18000, hairs=5, spread=3.0, width=1.7, length=1.05, tone=0.78),
    Layer(locks=20000, hairs=5, spread=2.6, width=0.95, length=1.0, tone=1.06),
    Layer(locks=16000, hairs=3, spread=2.0, width=0.5, length=0.95, tone=1.42),
]
JOINTS = 6


@dataclass
class Tufts:
    """Neighbouring locks that bend, shine and overlap together."""

    centre: Array  # [tufts, 2]
    bend: Array  # [tufts], radians
    tone: Array  # [tufts]
    depth: Array  # [tufts]

    @classmethod
    def scatter(cls, rng: Rng, count: int) -> Tufts:
        centre = sow(rng, count, bare_mask(), half_mask(HEAD, 5.0))
        n = len(centre)
        depth = np.linalg.norm((centre - [0.0, 260.0]) / [1.0, 1.25], axis=1)
        tone = np.exp(rng.normal(0.0, 0.20, n))
        return cls(centre, rng.normal(0.0, 0.30, n), tone, depth + rng.normal(0.0, 7.0, n))

    def of(self, roots: Array) -> NDArray[np.int64]:
        """The nearest tuft of every root, [n]."""
        gap = ((roots[:, None] - self.centre) ** 2).sum(axis=2)
        return np.asarray(gap.argmin(axis=1))


def bare_mask() -> Image.Image:
    """Where no coat grows: the face and the ears."""
    mask = half_mask(BARE, 3.0)
    pen = ImageDraw.Draw(mask)
    for side in (-1, 1):
        x, y = 300 + side * EAR[0], EAR[1]
        pen.ellipse((x - 13, y - 20, x + 13, y + 20), fill=255)
    return mask


def fur(rng: Rng, layer: Layer, tufts: Tufts) -> Strokes:
    roots = sow(rng, layer.locks, bare_mask(), half_mask(HEAD, 5.0))
    n = len(roots)
    tuft = tufts.of(roots)
    _, reach, base = coat_at(roots)
    length = reach * layer.length * rng.uniform(0.7, 1.25, n)
    spine = grow(roots, length, tufts.bend[tuft] + rng.normal(0.0, 0.14, n), 0.25)
    t = np.linspace(0.0, 1.0, JOINTS, dtype=np.float32)
    from_tuft = np.clip(roots - tufts.centre[tuft], -9.0, 9.0)
    spine -= 0.5 * from_tuft[:, None] * t[:, None] ** 1.5
    tone = tufts.tone[tuft] * np.exp(rng.normal(0.0, 0.12, n))
    tone *= np.clip(1.0 + 0.035 * (from_tuft @ LIGHT[:2]), 0.6, 1.4)
    pick = np.repeat(np.arange(n), layer.hairs)
    m = len(pick)
    offset = rng.normal(0.0, layer.spread, (m, 2))
    stray = rng.normal(0.0, 0.07, (m, 2)) * length[pick, None]
    path = spine[pick] + offset[:, None] * (1.0 - 0.6 * t[:, None])
    path += stray[:, None] * t[:, None] ** 2
    width = layer.width * rng.uniform(0.7, 1.3, (m, 1)) * (1.0 - t**1.6 * 0.9)
    hair_tone = layer.tone * tone[pick] * np.exp(rng.normal(0.0, 0.18, m))
    colour = fur_colour(rng, base[pick], roots[pick], hair_tone, JOINTS - 1)
    depth = tufts.depth[tuft[pick]] - 3.0 * layer.tone + rng.normal(0.0, 1.2, m)
    return Strokes(to_picture(path), width, colour, depth)


def coat(rng: Rng, tufts: Tufts) -> Strokes:
    """All layers as one pile, so that each tuft lies whole upon the one behind it."""
    parts = [fur(rng, layer, tufts) for layer in LAYERS]
    return Strokes(
        np.concatenate([part.path for part in parts]),
        np.concatenate([part.width for part in parts]),
        np.concatenate([part.colour for part in parts]),
        np.concatenate([part.depth for part in parts]),
    )


def fur_colour(rng: Rng, base: Array, roots: Array, tone: Array, segments: int) -> Array:
    """Hair colours [n, segments, 3]: dark roots, banded shafts, and the light on the head."""
    n = len(base)
    t = np.linspace(0.0, 1.0, segments, dtype=np.float32)
    ramp = 0.42 + 0.78 * t
    saturation = (base.max(axis=1) - base.min(axis=1)) / base.max(axis=1)
    olive = np.clip(1.6 - base.mean(axis=1) / 85.0, 0.0, 1.0)
    band = np.sin(2.0 * np.pi * (1.4 * t + rng.uniform(0, 1, (n, 1)))) * olive[:, None] * 0.35
    normal = np.stack(
        [roots[:, 0] / 230.0, np.clip((roots[:, 1] - 250.0) / 330.0, -1.0, 0.28)], axis=1
    )
    lit = np.clip(0.88 + 1.15 * (normal @ LIGHT[:2]), 0.30, 1.5)
    colour = base[:, None] * ((ramp + band) * (tone * lit)[:, None])[..., None]
    warm = rng.normal(0.0, 0.07, (n, 1, 1)) * saturation[:, None, None] * 2.0
    rim = (smoothstep(90.0, 190.0, roots[:, 0]) * tone)[:, None] * t**2
    tinted = colour * (1.0 + warm * np.array([1.0, 0.3, -1.0]))
    return np.asarray(tinted + rim[..., None] * RIM_LIGHT)


# ---------------------------------------------------------------------------- skin


def eye_frame(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Eye-centred coordinates and the distance outside the lids (negative inside)."""
    ex, ey = np.abs(x) - EYE[0], y - EYE[1]
    a = np.deg2rad(6.0)
    ex, ey = ex * np.cos(a) - ey * np.sin(a), ex * np.sin(a) + ey * np.cos(a)
    upper = -9.2 * (1.0 - (ex / 21.0) ** 2)
    lower = 11.5 * (1.0 - (ex / 21.0) ** 2)
    return ex, ey, np.maximum(upper - ey, ey - lower)


@dataclass
class Face:
    """Coordinates on the bare face that both its relief and its colours are built from."""

    x: Array
    y: Array
    stripe: Array  # signed distance outside the red stripe
    across: Array  # 0 at the inner, 1 at the outer edge of a cheek swelling
    swelling: Array  # mask of the cheek swellings
    ridge: Array  # 0 in the grooves of a swelling, 1 on its ridges
    lids: Array  # distance outside the eyelids
    nostril: Array  # 1 on the rim of a nostril, less inside
    mouth: Array  # distance below the line of the mouth

    @classmethod
    def measure(cls, rng: Rng) -> Face:
        x, y = face_grid(rng)
        ax = np.abs(x)
        inner, outer = curve(y, STRIPE) + 2.0, curve(y, SWELLING)
        s = (ax - inner) / np.maximum(outer - inner, 6.0)
        ends = smoothstep(178.0, 200.0, y) * (1.0 - smoothstep(334.0, 356.0, y))
        mask = ends * smoothstep(-0.04, 0.06, s) * (1.0 - smoothstep(0.9, 1.1, s))
        lids = eye_frame(x, y)[2]
        mouth = y - mouth_line(x)
        ridge = ridge_profile(rng, s, y)
        return cls(x, y, ax - inner + 2.0, s, mask, ridge, lids, nostril(x, y), mouth)


def mouth_line(x: Array) -> Array:
    return MOUTH_Y + 0.0022 * x**2


def nostril(x: Array, y: Array) -> Array:
    """A comma: wide and low beside the septum, its tail curling up and outwards."""
    nx, ny = np.abs(x) - 24.0, y - NOSE_Y - 7.0
    a = np.deg2rad(20.0)
    u, v = nx * np.cos(a) - ny * np.sin(a), nx * np.sin(a) + ny * np.cos(a)
    v = v - 0.016 * u**2
    return np.asarray(np.hypot(u / 13.5, v / np.clip(5.4 - 0.17 * u, 2.0, 8.0)))


def ridge_profile(rng: Rng, s: Array, y: Array) -> Array:
    """Rounded ridges parted by grooves that fan, waver, and run out at different lengths."""
    fan = 0.9 * (y - 262.0) / 160.0 * (1.0 - 0.5 * s)
    phase = RIDGES * np.clip(s, 0.0, 2.0) ** 0.85 + 0.25 * noise(rng, (6, 6)) - fan
    valley = np.abs(np.cos(np.pi * (phase + 0.05 * noise(rng, (26, 26)))))
    depth = np.clip(0.85 + 0.35 * noise(rng, (7, 9)), 0.25, 1.2)
    end = 12.0 * noise(rng, (2, 24))
    reach = smoothstep(190.0, 222.0, y + end) * (1.0 - smoothstep(312.0, 346.0, y + end))
    return 1.0 - np.clip(valley**4 * depth, 0.0, 1.0) * reach


def nose_pad(x: Array, y: Array, grow_by: float = 0.0) -> Array:
    """The wings and the bulb of the nose as one soft hill of height 1."""
    ax = np.abs(x)
    wing = bump(ax - 29.0, y - NOSE_Y - 1.0, 34.0 + grow_by, 27.0 + grow_by)
    rise = y - NOSE_Y + 6.0
    tall = np.where(rise < 0.0, 62.0, 33.0) + grow_by
    bulb = 0.85 * bump(x, rise / tall, 31.0 + grow_by, 1.0)
    return (wing**3 + bulb**3) ** (1.0 / 3.0)


def relief(rng: Rng, face: Face) -> Array:
    """Height of the face towards the viewer, in pixels."""
    x, y, s = face.x, face.y, face.across
    ax = np.abs(x)
    z = 84.0 * np.exp(-((x / 84.0) ** 2)) * smoothstep(130.0, 350.0, y)
    z *= 1.0 - 0.8 * smoothstep(385.0, 450.0, y)
    half = np.maximum(ax - face.stripe, 4.0) + 5.0
    z += 10.0 * np.clip(1.0 - (x / half) ** 2, 0.0, 1.0) ** 0.9 * smoothstep(376.0, 346.0, y)
    z += 20.0 * face.swelling * np.clip(1.0 - (2.0 * s - 1.0) ** 2, 0.0, 1.0) ** 0.6
    z += 4.2 * face.swelling * (face.ridge - 1.0)
    z += 24.0 * nose_pad(x, y)
    z -= 4.0 * np.exp(-((x / 2.4) ** 2)) * smoothstep(364.0, 378.0, y)
    z += 2.2 * np.exp(-(((face.nostril - 1.3) / 0.28) ** 2)) * (y > 350)
    z += 12.0 * np.exp(-(((face.mouth + 12.0) / 11.0) ** 2)) * smoothstep(86.0, 66.0, ax)
    z -= 9.0 * np.exp(-((face.mouth / 2.4) ** 2)) * smoothstep(70.0, 50.0, ax)
    z += 7.0 * np.exp(-(((face.mouth - 8.0) / 6.0) ** 2)) * smoothstep(86.0, 60.0, ax)
    leather = noise(rng, (34, 250)) * 0.5 + noise(rng, (90, 300)) * 0.35
    z += leather * (0.3 + 0.7 * face.swelling)
    return (z + orbits(face)).astype(np.float32)


def orbits(face: Face) -> Array:
    """Heavy brow, sunken sockets, thick lids and the wrinkles around them."""
    ax, d = np.abs(face.x), face.lids
    brow = face.y - (146.0 - 0.20 * ax + 0.0032 * ax**2)
    z = 34.0 * np.exp(-((brow / np.where(brow > 0, 7.0, 14.0)) ** 2)) * smoothstep(96.0, 62.0, ax)
    ex, ey, _ = eye_frame(face.x, face.y)
    z -= 18.0 * np.exp(-((ex / 30.0) ** 2) - (ey / 22.0) ** 2)
    z += 4.5 * np.exp(-(((d - 3.0) / 2.6) ** 2))
    z += 1.5 * np.cos(d * 0.95) * np.exp(-(((d - 11.0) / 7.0) ** 2)) * (d > 3)
    crease = np.cos(face.x * 0.8) * np.exp(-((face.x / 9.0) ** 2) - ((face.y - 152.0) / 12.0) ** 2)
    return z + 1.6 * crease


def albedo(rng: Rng, face: Face) -> Array:
    """Skin colour before light, [rows, columns, 3], 0..1."""
    y = face.y
    skin = np.empty((*y.shape, 3), np.float32)
    skin[:] = (0.27, 0.21, 0.19)

    def glaze(mask: Array, colour: tuple[float, float, float]) -> None:
        skin[:] += np.clip(mask, 0.0, 1.0)[..., None] * (np.array(colour, np.float32) - skin)

    mottle = noise(rng, (60, 60)) * 0.5 + noise(rng, (150, 150)) * 0.35
    cheek = face.swelling
    glaze(smoothstep(0.0, 0.5, cheek), (0.34, 0.42, 0.80))
    glaze(cheek * smoothstep(0.45, 1.0, face.ridge + 0.10 * mottle) * 0.9, (0.44, 0.64, 0.96))
    glaze(cheek * smoothstep(0.6, 0.0, face.ridge) * 0.85, (0.20, 0.15, 0.48))
    glaze(cheek * smoothstep(0.62, 1.02, face.across + 0.04 * mottle) * 0.8, (0.45, 0.28, 0.62))
    glaze(cheek * smoothstep(215.0, 188.0, y) * 0.6, (0.33, 0.24, 0.46))
    red = smoothstep(3.0, -1.5, face.stripe + 1.5 * mottle) * smoothstep(150, 182, y) * (y < 356)
    glaze(red, (0.80, 0.10, 0.09))
    glaze(red * smoothstep(0.2, 1.2, noise(rng, (90, 30)) + mottle) * 0.5, (0.90, 0.28, 0.24))
    tip = smoothstep(0.0, 0.25, nose_pad(face.x, y, 2.0)) * smoothstep(306.0, 346.0, y)
    glaze(tip, (0.93, 0.12, 0.11))
    lip = np.exp(-(((face.mouth - 6.0) / 5.0) ** 2)) * smoothstep(66.0, 30.0, np.abs(face.x))
    glaze(lip, (0.50, 0.22, 0.22))
    glaze(np.exp(-((face.lids / 4.5) ** 2)) * 0.65, (0.50, 0.34, 0.28))
    return skin * (1.0 + 0.06 * mottle[..., None])


def shade(rng: Rng, z: Array, skin: Array, gloss: Array) -> Array:
    """Light the relief: wrapped diffuse, cast shadow, hollows darkened, gloss. 0..1."""
    pores = 0.10 * noise(rng, (340, 340)) + 0.12 * noise(rng, (200, 200))
    gy, gx = np.gradient((z + pores) * SKIN_SCALE)
    normal = np.stack([-gx, -gy, np.ones_like(z)], axis=2) * [0.62, 0.62, 1.0]
    normal /= np.linalg.norm(normal, axis=2, keepdims=True)
    diffuse = np.clip((normal @ LIGHT + 0.18) / 1.18, 0.0, 1.0)
    hollow = np.clip((blur(z, 9.0) - z) / 7.0, -0.25, 0.75)
    fill = 0.20 * np.clip(normal @ np.array([0.8, 0.2, 0.55]), 0.0, 1.0)
    light = diffuse[..., None] * [1.16, 1.08, 0.98] + fill[..., None] * [0.75, 0.9, 1.2]
    light *= ((1.0 - 0.75 * hollow) * shadow(z))[..., None]
    half = LIGHT + np.array([0.0, 0.0, 1.0])
    half /= np.linalg.norm(half)
    spark = np.clip(normal @ half, 0.0, 1.0) ** 26 * gloss
    return np.asarray(skin * light * 1.12 + spark[..., None] * [1.0, 0.95, 0.92])


def shadow(z: Array) -> Array:
    """What the relief leaves of the light after casting its own soft shadow."""
    blocked = np.zeros_like(z)
    for step in range(4, 44, 4):
        dx, dy = (np.round(LIGHT[:2] * step * 1.4)).astype(int)
        towards = np.roll(z, (-dy, -dx), axis=(0, 1))
        blocked = np.maximum(blocked, towards - z - 0.42 * step)
    return 1.0 - 0.6 * smoothstep(0.0, 9.0, blur(blocked, 2.5))


def paint_openings(picture: Array, face: Face) -> None:
    """The dark of the nostrils and of the closed mouth."""
    hole = smoothstep(1.12, 0.70, face.nostril)
    picture *= 1.0 - (0.95 * hole)[..., None] * [0.94, 1.0, 1.0]
    line = smoothstep(2.6, 0.6, np.abs(face.mouth)) * smoothstep(74.0, 58.0, np.abs(face.x))
    picture *= 1.0 - 0.88 * line[..., None]


def paint_eyes(rng: Rng, picture: Array, face: Face) -> None:
    """Wet amber eyes under the shadow of the upper lid."""
    x, y = face.x, face.y
    ex, ey, d = eye_frame(x, y)
    gx, gy = np.abs(x) - EYE[0] + 0.8, y - EYE[1] - 0.3
    r, angle = np.hypot(gx, gy), np.arctan2(gy, gx * np.sign(x))
    fibres = 0.5 * noise(rng, (2, 160))[0][((angle / np.pi + 1) * 511).astype(int)]
    fibres = fibres + 0.35 * noise(rng, (90, 90))
    iris = np.stack([np.interp(r, [4, 7, 10.5, 13.0], band) for band in IRIS], axis=2)
    iris *= (1.0 + 0.20 * fibres + 0.022 * (gx * np.sign(x) * 0.5 + gy * 1.3))[..., None]
    eye = np.zeros_like(picture)
    eye[:] = (0.17, 0.10, 0.07)
    eye += smoothstep(13.6, 12.4, r)[..., None] * (iris - eye)
    eye *= 1.0 - 0.97 * smoothstep(5.9, 4.8, r)[..., None]
    eye *= (1.0 - 0.7 * smoothstep(-2.0, -10.0, ey + 0.02 * ex**2))[..., None]
    eye *= (1.0 - 0.5 * smoothstep(-3.0, 0.0, d))[..., None]
    sx = gx * np.sign(x)
    eye += 1.1 * smoothstep(1.25, 0.6, np.hypot((sx + 4.2) / 2.1, (gy + 3.8) / 1.9))[..., None]
    glint = smoothstep(1.2, 0.3, np.hypot((sx - 5.0) / 3.4, (gy - 6.2) / 1.5))
    eye += glint[..., None] * [0.25, 0.30, 0.34]
    picture += smoothstep(0.4, -0.6, d)[..., None] * (eye - picture)
    rim = np.exp(-(((d - 0.2) / 0.9) ** 2))
    picture *= 1.0 - 0.8 * (rim * smoothstep(4.0, -2.0, ey))[..., None]
    picture += (0.34 * rim * smoothstep(6.0, 9.0, ey))[..., None] * [1.0, 0.85, 0.8]


IRIS = [(0.80, 0.98, 0.86, 0.22), (0.40, 0.60, 0.40, 0.08), (0.06, 0.12, 0.05, 0.02)]


def skin_picture(rng: Rng) -> tuple[Image.Image, Image.Image, Array]:
    """The bare face at skin scale, its mask, and the face picture as [rows, columns, 3]."""
    face = Face.measure(rng)
    z = blur(relief(rng, face), 1.0)
    red = smoothstep(4.0, 0.0, face.stripe) * smoothstep(160.0, 200.0, face.y)
    gloss = 0.08 + 0.15 * face.swelling + 0.42 * red + 0.14 * (face.y > 330)
    picture = shade(rng, z, albedo(rng, face), gloss.astype(np.float32))
    paint_openings(picture, face)
    paint_eyes(rng, picture, face)
    pixels = (np.clip(picture, 0.0, 1.0) * 255.0).astype(np.float32)
    bare = np.asarray(half_mask(BARE, 6.0), np.float32)
    inside = sample(bare, np.stack([face.x + 300.0, face.y], axis=2), 1.0)
    mask_image = Image.fromarray(np.clip(inside * 1.6, 0, 255).astype(np.uint8))
    return Image.fromarray(pixels.astype(np.uint8)), mask_image, pixels


def skin_strokes(rng: Rng, pixels: Array, count: int, width: float, reach: float) -> Strokes:
    """Brushwork over the skin: strokes along the form that take up the colour beneath."""
    luma = blur(pixels.mean(axis=2), 3.0)
    gy, gx = np.gradient(luma)
    points = sow(rng, count, Image.new("L", (600, 620)), half_mask(BARE, 4.0))
    keep = np.hypot(np.abs(points[:, 0]) - EYE[0], (points[:, 1] - EYE[1]) * 1.5) > 25.0
    roots = to_picture(points[keep])
    n = len(roots)
    normal = np.stack([sample(gx, roots, SKIN_SCALE), sample(gy, roots, SKIN_SCALE)], axis=1)
    tangent = normal[:, ::-1] * [-1.0, 1.0] + [0.0, 0.5]
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True) + 1e-6
    t = np.linspace(-0.5, 0.5, 4)
    length = reach * rng.uniform(0.6, 1.4, n)
    path = roots[:, None] + tangent[:, None] * (t * length[:, None])[..., None]
    colour = sample(pixels, path[:, :-1], SKIN_SCALE) * np.exp(rng.normal(0, 0.07, (n, 1, 1)))
    taper = width * rng.uniform(0.6, 1.3, (n, 1)) * np.array([0.4, 1.0, 0.8, 0.2])
    return Strokes(path.astype(np.float32), taper, colour, rng.uniform(0, 1, n))


# ---------------------------------------------------------------------------- the rest


def background(rng: Rng) -> Image.Image:
    """Dark undergrowth: pools of green light, then blurred and sharp leaves."""
    size = SIDE * STROKE_SCALE
    pool = np.clip(noise(rng, (6, 6), SIDE) * 0.6 + 0.75, 0.1, 2.2)[..., None]
    base = (pool * [16.0, 26.0, 17.0] + [4.0, 7.0, 8.0]).astype(np.uint8)
    canvas = Image.fromarray(base).resize((size, size), Image.Resampling.BICUBIC)
    for count, long, wide, tone, soften in [(260, 120, 30, 0.8, 26), (240, 80, 17, 1.0, 5)]:
        draw(canvas, leaves(rng, count, long, wide, tone))
        canvas = canvas.filter(ImageFilter.GaussianBlur(soften))
    draw(canvas, leaves(rng, 190, 62, 11, 1.15))
    return canvas


def leaves(rng: Rng, count: int, long: float, wide: float, tone: float) -> Strokes:
    """Lance-shaped leaves in two halves, one lit and one in shade, along a midrib."""
    root = rng.uniform(-40, SIDE + 40, (count, 2))
    angle = rng.normal(0.9, 0.9, count)
    t = np.linspace(0.0, 1.0, 9)
    heading = angle[:, None] + rng.normal(0.0, 0.5, (count, 1)) * t
    step = np.stack([np.cos(heading), np.sin(heading)], axis=2)
    path = (
        root[:, None]
        + np.cumsum(step, axis=1) * (long / 9 * rng.uniform(0.6, 1.3, count))[:, None, None]
    )
    width = wide * rng.uniform(0.6, 1.2, (count, 1)) * np.sin(np.pi * t**0.7)
    hue = np.array([38.0, 66.0, 34.0]) + rng.normal(0, 1, (count, 1, 1)) * [10.0, 6.0, 8.0]
    value = tone * rng.uniform(0.25, 1.25, (count, 1, 1)) * (0.8 + 0.4 * t[:-1, None])
    across = np.stack([-step[..., 1], step[..., 0]], axis=2) * width[..., None] * 0.25
    depth = rng.uniform(0, 1, count)
    parts = [(across, width / 2, 1.0), (-across, width / 2, 0.6), (0 * across, width * 0.05, 1.5)]
    return Strokes(
        np.concatenate([path + shift for shift, _, _ in parts]).astype(np.float32),
        np.concatenate([w for _, w, _ in parts]),
        np.concatenate([hue * value * gain for _, _, gain in parts]),
        np.concatenate([depth - 1e-4 * k for k in range(3)]),
    )


def ears(rng: Rng) -> Strokes:
    """Ears: arcs of flesh around a dark hollow, mostly under the fur."""
    t = np.linspace(0.0, 1.0, 14)
    parts = []
    for side in (-1.0, 1.0):
        for ring in range(60):
            f = ring / 60.0
            a = np.pi * (-0.8 + 1.6 * t)
            r = 1.0 - 0.85 * f
            path = np.stack(
                [side * (EAR[0] + 19 * r * np.cos(a)), EAR[1] + 25 * r * np.sin(a)], axis=1
            )
            tone = (
                0.3
                + 0.6 * np.exp(-(((f - 0.08) / 0.1) ** 2))
                + 0.3 * np.exp(-(((f - 0.45) / 0.1) ** 2))
            )
            tone *= 0.95 - 0.3 * side
            parts.append((path + rng.normal(0, 0.4, path.shape), tone))
    path = to_picture(np.array([p for p, _ in parts]))
    tone = np.array([v for _, v in parts])[:, None, None]
    colour = tone * [118.0, 74.0, 66.0] * (1.1 - 0.5 * t[:-1, None])
    return Strokes(path, np.full(path.shape[:2], 1.6), colour, -np.tile(np.arange(60.0), 2))


def short_hairs(rng: Rng, pixels: Array) -> Strokes:
    """Down on the brow, around the eyes, and on the flanks of the muzzle and the lip."""
    points = rng.uniform([-110, 110], [110, 430], (70000, 2)).astype(np.float32)
    x, y = points.T
    ax = np.abs(x)
    inside = np.asarray(half_mask(BARE, 3.0), np.float32)[y.astype(int), x.astype(int) + 300] / 255
    naked = np.maximum.reduce(
        [
            smoothstep(3.0, -3.0, ax - curve(y, SWELLING)) * (y > 186) * (y < 350),
            smoothstep(2.0, -2.0, ax - curve(y, STRIPE)) * (y > 158) * (y < 350),
            smoothstep(17.0, 10.0, eye_frame(x, y)[2]),
            smoothstep(0.0, 0.1, nose_pad(x, y, 2.0)),
            smoothstep(-4.0, -1.0, y - mouth_line(x)) * (ax < 66),
            0.7 * smoothstep(40.0, 30.0, ax) * (y > 150) * (y < 200),
        ]
    )
    keep = inside * (1.0 - naked) > rng.uniform(0.2, 1.0, len(points))
    roots = points[keep]
    n = len(roots)
    _, reach, base = coat_at(roots)
    length = np.clip(reach * 0.5, 5.0, 13.0) * rng.uniform(0.6, 1.3, n)
    path = grow(roots, length, rng.normal(0.0, 0.3, n), 0.1)
    light = blur(pixels.mean(axis=2), 4.0)
    tone = np.clip(sample(light, to_picture(roots), SKIN_SCALE) / 52.0, 0.35, 1.5)
    tone = tone * np.exp(rng.normal(0.0, 0.33, n))
    width = rng.uniform(0.45, 1.0, (n, 1)) * (1.0 - 0.8 * np.linspace(0.0, 1.0, JOINTS) ** 2)
    colour = fur_colour(rng, base, roots, tone, JOINTS - 1)
    return Strokes(to_picture(path), width, colour, np.abs(roots[:, 1] - 270))


def whiskers(rng: Rng) -> Strokes:
    """Long pale bristles from the lips and chin, a pixel wide or less."""
    n = 300
    side = np.where(rng.uniform(size=n) < 0.5, -1.0, 1.0)
    x = 8.0 + 70.0 * rng.uniform(0.0, 1.0, n) ** 0.6
    roots = np.stack(
        [side * x, MOUTH_Y + np.where(x < 46, 14, -4) + 0.003 * x**2 + rng.normal(0, 4, n)], axis=1
    )
    angle = np.deg2rad(78 - 0.85 * x + rng.normal(0, 12, n))
    t = np.linspace(0.0, 1.0, 9)
    heading = angle[:, None] + rng.normal(0.25, 0.25, (n, 1)) * t
    length = rng.uniform(14, 34, n) * np.where(rng.uniform(size=n) < 0.16, 2.9, 1.0)
    step = np.stack([side[:, None] * np.cos(heading), np.sin(heading)], axis=2)
    path = roots[:, None] + np.cumsum(step, axis=1) * (length / 9)[:, None, None]
    tone = rng.uniform(0.75, 1.08, (n, 1, 1)) * (0.75 + 0.3 * t[:-1, None])
    colour = np.array([240.0, 234.0, 218.0]) * tone
    width = rng.uniform(0.5, 0.85, (n, 1)) * (1.0 - 0.75 * t)
    return Strokes(to_picture(path), width, colour, rng.uniform(0, 1, n))


def paint(seed: int = SEED) -> Image.Image:
    """The finished picture, 512 by 512, RGB."""
    rng = np.random.default_rng(seed)
    canvas = background(rng)
    face, mask, pixels = skin_picture(rng)
    tufts = Tufts.scatter(rng, 2600)
    draw(canvas, fur(rng, UNDERCOAT, tufts))
    draw(canvas, ears(rng))
    canvas.paste(face.resize(canvas.size, Image.Resampling.BICUBIC), mask=mask.resize(canvas.size))
    draw(canvas, skin_strokes(rng, pixels, 40000, 1.4, 7.0))
    draw(canvas, skin_strokes(rng, pixels, 80000, 0.6, 4.0))
    draw(canvas, coat(rng, tufts))
    draw(canvas, short_hairs(rng, pixels))
    draw(canvas, whiskers(rng))
    return canvas.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Paint the project's picture of a mandrill.")
    default = Path(__file__).with_name("mandrill.png")
    parser.add_argument("-o", "--output", type=Path, default=default)
    paint().save(parser.parse_args().output, optimize=True)


if __name__ == "__main__":
    main()
