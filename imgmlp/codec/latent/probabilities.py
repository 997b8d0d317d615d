"""Probabilities of latents, as integers that are the same on every machine.

Part of the file format (docs/format-imlp.md): a change here would make files unreadable.

A latent follows a Laplace distribution whose mean is a multiple of 1/64 and whose scale is
exp((i - 112) / 32) for an index i from 0 to 255. The range coder codes its distance d from the
rounded mean, as the slot d + MAX_DISTANCE. A distribution has the number PHASES * i + p: its phase
p says that the mean is (p - PHASES / 2) / PHASES above the integer that it is rounded to.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.probabilities import TOTAL_BITS

Array = np.ndarray[Any, Any]

MEAN_BITS = 6  # fractional bits of a mean
PHASES = 1 << MEAN_BITS  # positions of a mean between two integers
SCALE_BITS = 5  # fractional bits of the logarithm of a scale
SCALES = 256
UNIT_SCALE_INDEX = 112  # index of the scale 1

MAX_DISTANCE = 128  # distances from the rounded mean are -MAX_DISTANCE to MAX_DISTANCE - 1
SLOTS = 2 * MAX_DISTANCE  # one for each distance

# Frequencies of a distribution add up to 2**TOTAL_BITS. Every slot has at least MIN_FREQUENCY; the
# rest is distributed as the Laplace distribution says.
MIN_FREQUENCY = 16
LAPLACE_FREQUENCY = (1 << TOTAL_BITS) - SLOTS * MIN_FREQUENCY

# A decoder searches the NEAR_EDGES cumulative frequencies from that of slot FIRST_NEAR_EDGE on
# before all others. They surround the slot of the mean, and most latents lie between them.
NEAR_EDGES = 16
FIRST_NEAR_EDGE = MAX_DISTANCE - NEAR_EDGES // 2 + 1

PROBABILITY_BITS = 31  # fractional bits of tail probabilities

# exp(-1 / 64b) for the scales b, as fractions of 2**31. tools/entropy_tables.py computes them.
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
    """exp(-distance / b) for every scale b, in multiples of 2**-31; callers must not modify it.

    The first array, int64 [SCALES, PHASES + 1], is for distances of 0 to PHASES 64ths. The second,
    int64 [SCALES, MAX_DISTANCE + 1], is for integer distances from 0 to MAX_DISTANCE. The product
    of one element of each gives any other distance.
    """
    decay = np.array(DECAY, np.int64)
    fine = _powers(decay, PHASES)
    return fine, _powers(fine[:, PHASES], MAX_DISTANCE)


def _powers(base: Array, max_power: int) -> Array:
    """Powers from 0 to max_power of each base, rounded down at every step: int64 [scales, n]."""
    powers = np.empty((len(base), max_power + 1), np.int64)
    powers[:, 0] = 1 << PROBABILITY_BITS
    for n in range(max_power):
        powers[:, n + 1] = powers[:, n] * base >> PROBABILITY_BITS
    return powers


def cumulative_frequency(numbers: Array, slots: Array) -> Array:
    """The sum of the frequencies of all slots before a slot: int64 [...].

    `numbers` are the numbers of the distributions [...], `slots` one slot of each. The sum before
    slot SLOTS, which is past the last one, is 2**TOTAL_BITS.
    """
    scale, phase = numbers >> MEAN_BITS, numbers & PHASES - 1
    fine, whole = tails()
    is_above = slots > MAX_DISTANCE
    distances = np.where(is_above, slots - (MAX_DISTANCE + 1), MAX_DISTANCE - slots)
    sums: Array = whole[scale, distances] * fine[scale, np.where(is_above, PHASES - phase, phase)]
    sums >>= PROBABILITY_BITS
    np.subtract(2 << PROBABILITY_BITS, sums, out=sums, where=is_above)
    sums *= LAPLACE_FREQUENCY
    sums >>= PROBABILITY_BITS + 1
    sums += MIN_FREQUENCY * slots
    sums[slots == 0], sums[slots == SLOTS] = 0, 1 << TOTAL_BITS
    return sums


class CumulativeTables(dict[int, list[int]]):
    """For each distribution number, `count` cumulative frequencies from slot `first` on.

    A list is computed when it is first used.
    """

    def __init__(self, first: int = 0, count: int = SLOTS + 1) -> None:
        super().__init__()
        self._first, self._count = first, count
        # By scale, for all of its phases: if one of them is used, others will be.
        self._by_scale: dict[int, Array] = {}

    def __missing__(self, number: int) -> list[int]:
        scale, phase = divmod(number, PHASES)
        if scale not in self._by_scale:
            phases, slots = np.indices((PHASES, self._count))
            numbers = phases + scale * PHASES
            self._by_scale[scale] = cumulative_frequency(numbers, slots + self._first)
        table: list[int] = self._by_scale[scale][phase].tolist()
        self[number] = table
        return table
