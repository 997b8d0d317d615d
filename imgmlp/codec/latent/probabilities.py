"""Probabilities of latents, as whole numbers that are the same on every machine.

Part of the file format (docs/format-imlp.md): a change here would make files unreadable. A latent
is Laplace distributed around a mean, in steps of a 64th, with one of the scales
exp((i - 112) / 32) for i from 0 to 255.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.probabilities import TOTAL_BITS

Array = np.ndarray[Any, Any]

MEAN_BITS = 6  # of the fraction of a mean
SCALE_BITS = 5  # of the fraction of a scale's logarithm
SCALES = 256
MIDDLE = 112  # number of the scale 1
# A latent is coded as its distance, -MOST_AWAY to MOST_AWAY - 1, from the rounded mean.
MOST_AWAY = 128
PLACES = 2 * MOST_AWAY
PHASES = 1 << MEAN_BITS  # of a mean between whole numbers
FLOOR = 16  # the frequency that every place has at least, of 2**26
SHARED = (1 << TOTAL_BITS) - PLACES * FLOOR  # what the distribution shares out beyond that
NEAR = 16  # edges that are looked into first, between which most latents are
NEAR_FROM = MOST_AWAY - NEAR // 2 + 1  # so that they are around place MOST_AWAY, the mean's
ONE_BITS = 31  # of the fraction of a tail

# exp(-1 / 64b) for the scales b, as fractions of 2**31: tools/entropy_tables.py
DECAY = (
    1280009914, 1300550242, 1320773115, 1340673839, 1360248395, 1379493409, 1398406124, 1416984369,
    1435226533, 1453131536, 1470698802, 1487928229, 1504820165, 1521375379, 1537595034, 1553480668,
    1569034161, 1584257717, 1599153840, 1613725308, 1627975158, 1641906660, 1655523299, 1668828756,
    1681826890, 1694521721, 1706917413, 1719018258, 1730828661, 1742353127, 1753596247, 1764562683,
    1775257162, 1785684457, 1795849384, 1805756787, 1815411528, 1824818485, 1833982535, 1842908553,
    1851601403, 1860065931, 1868306959, 1876329280, 1884137652, 1891736795, 1899131384, 1906326050,
    1913325369, 1920133865, 1926756007, 1933196201, 1939458793, 1945548067, 1951468237, 1957223454,
    1962817799, 1968255284, 1973539850, 1978675367, 1983665633, 1988514375, 1993225248, 1997801833,
    2002247638, 2006566102, 2010760590, 2014834394, 2018790736, 2022632768, 2026363572, 2029986157,
    2033503468, 2036918378, 2040233695, 2043452160, 2046576449, 2049609172, 2052552876, 2055410047,
    2058183107, 2060874420, 2063486288, 2066020956, 2068480612, 2070867387, 2073183356, 2075430543,
    2077610915, 2079726391, 2081778835, 2083770066, 2085701850, 2087575909, 2089393916, 2091157499,
    2092868244, 2094527690, 2096137336, 2097698638, 2099213015, 2100681842, 2102106459, 2103488167,
    2104828231, 2106127880, 2107388309, 2108610679, 2109796117, 2110945719, 2112060549, 2113141641,
    2114190000, 2115206600, 2116192390, 2117148288, 2118075188, 2118973958, 2119845440, 2120690451,
    2121509785, 2122304214, 2123074484, 2123821322, 2124545433, 2125247501, 2125928190, 2126588144,
    2127227990, 2127848333, 2128449763, 2129032851, 2129598151, 2130146203, 2130677527, 2131192631,
    2131692005, 2132176127, 2132645459, 2133100450, 2133541535, 2133969136, 2134383663, 2134785513,
    2135175072, 2135552713, 2135918799, 2136273682, 2136617702, 2136951191, 2137274469, 2137587848,
    2137891628, 2138186104, 2138471558, 2138748266, 2139016495, 2139276504, 2139528543, 2139772856,
    2140009678, 2140239240, 2140461762, 2140677460, 2140886543, 2141089212, 2141285664, 2141476089,
    2141660671, 2141839589, 2142013018, 2142181123, 2142344069, 2142502014, 2142655110, 2142803507,
    2142947347, 2143086772, 2143221915, 2143352909, 2143479880, 2143602951, 2143722243, 2143837871,
    2143949947, 2144058581, 2144163878, 2144265940, 2144364867, 2144460754, 2144553695, 2144643781,
    2144731098, 2144815732, 2144897766, 2144977279, 2145054348, 2145129049, 2145201454, 2145271633,
    2145339656, 2145405588, 2145469493, 2145531434, 2145591471, 2145649662, 2145706064, 2145760733,
    2145813721, 2145865080, 2145914860, 2145963109, 2146009875, 2146055203, 2146099138, 2146141721,
    2146182996, 2146223001, 2146261776, 2146299358, 2146335785, 2146371092, 2146405313, 2146438482,
    2146470631, 2146501791, 2146531993, 2146561266, 2146589639, 2146617139, 2146643794, 2146669628,
    2146694668, 2146718938, 2146742462, 2146765262, 2146787361, 2146808780, 2146829540, 2146849662,
    2146869165, 2146888068, 2146906390, 2146924148, 2146941360, 2146958042, 2146974211, 2146989883,
    2147005073, 2147019796, 2147034065, 2147047896, 2147061302, 2147074295, 2147086888, 2147099094,
)  # fmt: skip


@cache
def tails() -> tuple[Array, Array]:
    """The share, of 2**31, that exp(-distance / b) leaves of each scale b; never written to.

    For distances of 0 to PHASES 64ths, int64 [SCALES, PHASES + 1], and for whole distances of 0 to
    MOST_AWAY, int64 [SCALES, MOST_AWAY + 1]. A product of one of each gives any other.
    """
    decay = np.array(DECAY, np.int64)
    fine = _powers(decay, PHASES)
    return fine, _powers(fine[:, PHASES], MOST_AWAY)


def _powers(factor: Array, most: int) -> Array:
    """int64 [scales, most + 1]."""
    found = np.empty((len(factor), most + 1), np.int64)
    found[:, 0] = 1 << ONE_BITS
    for n in range(most):
        found[:, n + 1] = found[:, n] * factor >> ONE_BITS
    return found


def edge(numbers: Array, places: Array) -> Array:
    """int64 [...]: of distributions [...], the sums of the frequencies before a place of each.

    Number PHASES * scale + phase: phase p is that of means p - PHASES / 2 steps above a whole
    number m, place d + MOST_AWAY that of the latent m + d. The sum before place PLACES is 2**26.
    """
    scale, phase = numbers >> MEAN_BITS, numbers & PHASES - 1
    fine, whole = tails()
    above = places > MOST_AWAY
    distances = np.where(above, places - (MOST_AWAY + 1), MOST_AWAY - places)
    found: Array = whole[scale, distances] * fine[scale, np.where(above, PHASES - phase, phase)]
    found >>= ONE_BITS
    np.subtract(2 << ONE_BITS, found, out=found, where=above)
    found *= SHARED
    found >>= ONE_BITS + 1
    found += FLOOR * places
    found[places == 0], found[places == PLACES] = 0, 1 << TOTAL_BITS
    return found


class Rows(dict[int, list[int]]):
    """So many edges of each number, from that of place `first` on, as a list that is made when it
    is wanted first."""

    def __init__(self, first: int = 0, count: int = PLACES + 1) -> None:
        super().__init__()
        self._first, self._count = first, count
        self._tables: dict[int, Array] = {}  # of a scale: where one phase is wanted, others are

    def __missing__(self, number: int) -> list[int]:
        scale, phase = divmod(number, PHASES)
        if scale not in self._tables:
            numbers, places = np.indices((PHASES, self._count))
            self._tables[scale] = edge(numbers + scale * PHASES, places + self._first)
        found: list[int] = self._tables[scale][phase].tolist()
        self[number] = found
        return found
