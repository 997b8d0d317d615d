"""Charts have axes with round values, and names that do not overlap."""

from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgmlp.report.chart import (
    MARKERS,
    MIN_SPACING,
    Line,
    Scale,
    marked,
    nice_ticks,
    rate_chart,
    spread,
)

SVG = "{http://www.w3.org/2000/svg}"
RATES = (0.16, 0.24, 0.35, 0.5, 0.8)


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))


def test_ticks_are_few_round_numbers() -> None:
    assert nice_ticks(20.3, 34.7) == [22, 24, 26, 28, 30, 32, 34]
    assert nice_ticks(0.61, 0.98) == [0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
    assert nice_ticks(0, 60_000, 4) == [0, 20_000, 40_000, 60_000]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_lie_within_the_range(low: float, width: float) -> None:
    ticks = nice_ticks(low, low + width)
    assert len(ticks) <= 9
    slack = 1e-6 * width + math.ulp(abs(low) + width)
    assert all(low - slack <= tick <= low + width + slack for tick in ticks)


@given(st.lists(st.floats(0, 200), min_size=1, max_size=12))
def test_spread_names_keep_their_order_and_a_minimum_spacing(wanted: list[float]) -> None:
    spread_places = spread(wanted, 0, 200)
    places = sorted(spread_places)
    assert all(b - a >= MIN_SPACING - 1e-9 for a, b in itertools.pairwise(places))
    assert max(places) <= 200
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    assert [spread_places[n] for n in order] == places


def test_logarithmic_scale_maps_equal_ratios_to_equal_distances() -> None:
    scale = Scale(0.1, 10, 0, 200, log=True)
    assert scale.at(1) == pytest.approx(100)
    assert Scale(0, 10, 200, 0).at(2.5) == pytest.approx(150)


def test_chart_names_its_axes_and_lines() -> None:
    lines = [
        Line(f"c{n}", f"name <{n}>", [(rate, 20 + n + 10 * rate) for rate in RATES], n == 0, marker)
        for n, marker in enumerate(MARKERS)
    ]
    chart = parsed(rate_chart("PSNR", "dB", "one & only", lines, RATES))
    texts = [text.text for text in chart.iter(f"{SVG}text")]
    assert {"PSNR, dB", "bits per pixel, logarithmic", *map(str, RATES)} <= set(texts)
    assert {line.name for line in lines} <= set(texts)
    assert chart.find(f"{SVG}title").text == "PSNR over bits per pixel, one & only"
    marks = [mark for mark in chart.iter(f"{SVG}path") if mark.get("class") == "mark"]
    assert len(marks) == len(lines) * len(RATES)
    assert marks[0].find(f"{SVG}title").text.endswith("bits per pixel")


def test_all_markers_have_different_shapes() -> None:
    assert len({marked(kind, 20, 10, 3.4) for kind in MARKERS}) == len(MARKERS)


def test_cross_marker_has_four_arms_around_its_centre() -> None:
    outline = marked("cross", 20, 10, 20).strip("Mz").split("L")
    corners = [tuple(float(value) for value in corner.split()) for corner in outline]
    turned = [(round(20 - (y - 10), 1), round(10 + (x - 20), 1)) for x, y in corners]
    assert turned == corners[3:] + corners[:3]
    assert len(set(corners)) == 12
    for (a, b), (c, d) in itertools.pairwise([*corners, corners[0]]):
        assert (a == c) is not (b == d)  # each edge is horizontal or vertical


def test_chart_without_points_is_empty() -> None:
    assert rate_chart("SSIM", "", "", [Line("a", "a", [])], RATES) == ""


def test_chart_of_a_single_point_is_drawn() -> None:
    assert parsed(rate_chart("SSIM", "", "", [Line("a", "a", [(0.5, 0.9)])], (0.5,))) is not None
