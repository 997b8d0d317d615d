"""Make test pictures of 320 x 240 pixels that are not photographs.

    python benchmarks/kinds.py kodim05.png kodim15.png kodim23.png kinds
    python benchmarks/small_pictures.py kinds/*.png --crop 320 --effort 1 3 5

They show screens, drawings, text, maps and graphs of functions, and modified photographs: gray,
blurred, dark, in few colours, as a JPEG. The same photographs always give the same pictures.
"""

from __future__ import annotations

import argparse
import io
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

WIDTH, HEIGHT = 320, 240
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "and", "counts", "bits"]
BRIGHT = [(220, 220, 220), (250, 120, 160), (120, 200, 250), (160, 230, 120), (240, 200, 100)]
Painted = Image.Image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", nargs=3, type=Path, help="of 320 x 240 pixels or more")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    for paint in (
        screen,
        code,
        drawing,
        scan,
        road_map,
        gradient,
        heat,
        stars,
        fractal,
        ultrasound,
    ):
        paint(random.Random(5), np.random.default_rng(5)).save(
            options.folder / f"{paint.__name__}.png"
        )
    for photo in options.photos:
        whole = middle(Image.open(photo).convert("RGB"))
        for change in (gray, blurred, dark, enlarged, noisy, captioned, posterized, blocks, jpeg):
            change(whole).save(options.folder / f"{change.__name__}-{photo.stem}.png")


def font(size: int) -> ImageFont.FreeTypeFont:
    found = ImageFont.load_default(size)
    assert isinstance(found, ImageFont.FreeTypeFont)
    return found


def words(draws: random.Random, count: int) -> str:
    return " ".join(draws.choice(WORDS) for _ in range(count))


def image(values: np.ndarray) -> Painted:
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def screen(draws: random.Random, __: np.random.Generator) -> Painted:
    """A window of settings: text, rounded fields and a title that gets brighter."""
    found = Image.new("RGB", (WIDTH, HEIGHT), (236, 238, 242))
    draw = ImageDraw.Draw(found)
    for x in range(WIDTH):
        draw.line((x, 0, x, 22), fill=(40 + x // 6, 60 + x // 8, 120))
    draw.text((8, 4), "Settings - General", fill="white", font=font(13))
    for row in range(5):
        y, colour = 32 + row * 38, [(60, 120, 230), (70, 180, 90), (220, 80, 70)][row % 3]
        box = 10, y, 150, y + 28
        draw.rounded_rectangle(box, 6, fill="white", outline=(190, 195, 205))
        draw.text((18, y + 6), words(draws, 3), fill=(30, 30, 40), font=font(11))
        draw.rounded_rectangle((230, y + 2, 300, y + 26), 10, fill=colour)
        draw.text((245, y + 7), "Apply", fill="white", font=font(11))
    return found


def code(draws: random.Random, __: np.random.Generator) -> Painted:
    """An editor: small text in five colours on a dark ground."""
    found = Image.new("RGB", (WIDTH, HEIGHT), (30, 31, 40))
    draw = ImageDraw.Draw(found)
    for line in range(16):
        x = 8 + 12 * draws.randint(0, 3)
        for word in words(draws, 6).split():
            draw.text((x, 4 + line * 15), word, fill=draws.choice(BRIGHT), font=font(11))
            x += int(draw.textlength(word + " ", font=font(11)))
    return found


def drawing(draws: random.Random, __: np.random.Generator) -> Painted:
    """Smooth black arcs on white."""
    found = Image.new("L", (4 * WIDTH, 4 * HEIGHT), 255)
    draw = ImageDraw.Draw(found)
    for _ in range(40):
        x, y = draws.randint(0, 4 * WIDTH), draws.randint(0, 4 * HEIGHT)
        box = x - 200, y - 150, x + 200, y + 150
        ends = draws.randint(0, 180), draws.randint(180, 360)
        draw.arc(box, *ends, fill=0, width=draws.choice([3, 6, 9]))
    return found.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).convert("RGB")


def scan(draws: random.Random, noise: np.random.Generator) -> Painted:
    """A gray page of text, a little askew, unevenly lit, with noise."""
    page = Image.new("L", (WIDTH, HEIGHT), 250)
    draw = ImageDraw.Draw(page)
    for line in range(16):
        draw.text((10, 6 + line * 14.5), words(draws, 9), fill=20, font=font(11))
    page = page.rotate(1.2, Image.Resampling.BICUBIC, fillcolor=250)
    seen = np.asarray(page.filter(ImageFilter.GaussianBlur(0.7)), np.float64)
    return image(seen - np.linspace(0, 25, WIDTH) + noise.normal(0, 5, seen.shape))


def road_map(draws: random.Random, __: np.random.Generator) -> Painted:
    """Areas, lines of three widths over them, and names."""
    found = Image.new("RGB", (2 * WIDTH, 2 * HEIGHT), (200, 220, 180))
    draw = ImageDraw.Draw(found)
    areas = [(170, 210, 240), (240, 235, 215), (180, 205, 150), (225, 225, 225)]
    roads = [(255, 200, 80), (255, 255, 255), (150, 150, 150)]

    def place() -> tuple[int, int]:
        return draws.randint(0, 2 * WIDTH), draws.randint(0, 2 * HEIGHT)

    for _ in range(20):
        x, y = place()
        offsets = [(draws.randint(-120, 120), draws.randint(-90, 90)) for _ in range(6)]
        draw.polygon([(x + across, y + down) for across, down in offsets], draws.choice(areas))
    for _ in range(25):
        ends = [place() for _ in range(3)]
        draw.line(ends, fill=draws.choice(roads), width=draws.choice([2, 4, 8]))
    found = found.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
    draw = ImageDraw.Draw(found)
    for _ in range(12):
        where = draws.randint(0, WIDTH - 60), draws.randint(0, HEIGHT - 12)
        draw.text(where, draws.choice(WORDS).title(), fill=(40, 40, 60), font=font(10))
    return found


def gradient(__: random.Random, noise: np.random.Generator) -> Painted:
    """Three slopes, dithered."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    slopes = [x / WIDTH * 255, y / HEIGHT * 180 + 40, 255 - x / WIDTH * 120]
    values = np.stack(slopes, -1)
    return image(values + noise.uniform(-0.5, 0.5, values.shape))


def heat(draws: random.Random, __: np.random.Generator) -> Painted:
    """A sum of waves in colours."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [[draws.uniform(2, 20), draws.uniform(2, 20), draws.uniform(0, 6)] for _ in range(5)]
    total = sum(np.sin(x / WIDTH * a + y / HEIGHT * b + c) for a, b, c in waves)
    level = (total - np.min(total)) / np.ptp(total)
    return image(255 * np.stack([level**0.5, level**2, np.sin(level * np.pi)], -1))


def stars(__: random.Random, noise: np.random.Generator) -> Painted:
    """Points of light in a dark sky with a camera's noise."""
    values = noise.normal(6, 2, (HEIGHT, WIDTH, 3))
    for _ in range(300):
        at = noise.integers(HEIGHT), noise.integers(WIDTH)
        values[at] += noise.uniform(40, 250)
    return image(values).filter(ImageFilter.GaussianBlur(0.6))


def fractal(*__: object) -> Painted:
    """The Mandelbrot set, by how many steps points take to leave it."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    start = (x - 220) / 90 + 1j * (y - 120) / 90
    at, count = np.zeros_like(start), np.zeros(start.shape)
    for _ in range(60):
        stays = abs(at) < 4
        at, count = np.where(stays, at * at + start, at), count + stays
    return image(np.stack([count * 4 % 256, count * 7 % 256, count * 13 % 256], -1))


def ultrasound(__: random.Random, noise: np.random.Generator) -> Painted:
    """Soft gray spots with speckle."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    values = np.zeros((HEIGHT, WIDTH))
    for number in range(1, 13):
        across, down = noise.uniform(0, WIDTH), noise.uniform(0, HEIGHT)
        square, wide = (x - across) ** 2 + (y - down) ** 2, noise.uniform(500, 9000)
        values += 200 / number * np.exp(-square / wide)
    speckled = image(values * (1 + noise.normal(0, 0.15, values.shape)))
    return speckled.filter(ImageFilter.GaussianBlur(0.8))


def middle(photo: Painted) -> Painted:
    left, top = (photo.width - WIDTH) // 2, (photo.height - HEIGHT) // 2
    return photo.crop((left, top, left + WIDTH, top + HEIGHT))


def gray(photo: Painted) -> Painted:
    return photo.convert("L")


def blurred(photo: Painted) -> Painted:
    return photo.filter(ImageFilter.GaussianBlur(4))


def dark(photo: Painted) -> Painted:
    return photo.point(lambda value: value // 6)


def enlarged(photo: Painted) -> Painted:
    small = photo.resize((WIDTH // 4, HEIGHT // 4), Image.Resampling.LANCZOS)
    return small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)


def noisy(photo: Painted) -> Painted:
    values = np.asarray(photo, np.float64)
    return image(values + np.random.default_rng(5).normal(0, 15, values.shape))


def captioned(photo: Painted) -> Painted:
    found, draws = photo.copy(), random.Random(5)
    draw = ImageDraw.Draw(found)
    draw.rectangle((0, 190, WIDTH, HEIGHT), fill="black")
    draw.text((10, 198), words(draws, 5), fill="yellow", font=font(16))
    draw.text((10, 218), words(draws, 6), fill="white", font=font(12))
    return found


def posterized(photo: Painted) -> Painted:
    """Areas of twelve colours, with smooth edges."""
    large = photo.resize((2 * WIDTH, 2 * HEIGHT)).filter(ImageFilter.ModeFilter(9))
    few = large.quantize(12, dither=Image.Dither.NONE).convert("RGB")
    return few.resize((WIDTH, HEIGHT), Image.Resampling.BOX)


def blocks(photo: Painted) -> Painted:
    """Pixel art: squares of 8 x 8 in sixteen colours."""
    small = photo.resize((WIDTH // 8, HEIGHT // 8), Image.Resampling.BOX)
    few = small.quantize(16, dither=Image.Dither.NONE).convert("RGB")
    return few.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST)


def jpeg(photo: Painted) -> Painted:
    """As a JPEG of quality 30 gives it."""
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=30)
    return Image.open(file).convert("RGB")


if __name__ == "__main__":
    main()
