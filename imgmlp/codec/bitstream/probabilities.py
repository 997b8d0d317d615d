"""Probabilities of quantised values, as integers that are the same on every machine.

Part of the file format (docs/format-imlp.md): a change here would make files unreadable.
Distributions are identified by a number. They do not depend on what the values mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate

TOTAL_BITS = 26  # frequencies of a distribution add up to 2**26
LAPLACES = 48  # 0 to 47: Laplace, scale b = 2 ** ((i - 15) / 4), from 0.074 to 256
NORMALS = 40  # 48 to 87: normal, deviation s = 2 ** ((i - 55) / 4), from 0.30 to 256
DISTRIBUTIONS = LAPLACES + NORMALS

# exp(-1 / 2v) for v = 2 ** ((i - 15) / 4), as fractions of 2**32: tools/entropy_tables.py
DECAY = (
    5145013, 15004422, 36905875, 78665070, 148652826, 253857248, 398132550, 581260615,
    799036310, 1044178424, 1307656790, 1580030169, 1852521207, 2117713904, 2369882518, 2605029347,
    2820730047, 3015876649, 3190386796, 3344923893, 3480652712, 3599040369, 3701703250, 3790295335,
    3866431115, 3931635878, 3987316692, 4034748382, 4075069962, 4109287957, 4138284039, 4162825044,
    4183574096, 4201101925, 4215897841, 4228380000, 4238904802, 4247775344, 4255248918, 4261543595,
    4266843974, 4271306145, 4275061981, 4278222805, 4280882540, 4283120382, 4285003080, 4286586875,
    4287919135, 4289039749, 4289982295, 4290775039, 4291441769, 4292002499, 4292474072, 4292870656,
    4293204170, 4293484642, 4293720503, 4293918848, 4294085643, 4294225905, 4294343854, 4294443040,
    4294526447, 4294596584, 4294655564, 4294705160, 4294746866, 4294781936, 4294811427, 4294836226,
    4294857079, 4294874615, 4294889361, 4294901760, 4294912187, 4294920955, 4294928328, 4294934528,
)  # fmt: skip
_FRACTION_BITS = 62  # of a tail probability or a density
# Values have frequencies of their own as long as the tail that begins with them is at least 2**-16.
_MIN_TAIL = 1 << (_FRACTION_BITS - 16)


@dataclass(frozen=True, eq=False)
class Distribution:
    """Frequencies of the values -reach to reach, and of an escape below and one above them.

    `starts[k]` is the sum of the frequencies of all slots before k. Slot 0 is the escape below,
    value + reach + 1 the slot of a value, and 2 * reach + 2 the escape above; the last entry is the
    total.
    """

    starts: tuple[int, ...]  # [2 * reach + 4]
    reach: int
    order: int  # of the Exp-Golomb code of values beyond the reach


@cache
def distribution(index: int) -> Distribution:
    """The distribution with a number from 0 to 87. Raises ValueError for others."""
    if not 0 <= index < DISTRIBUTIONS:
        raise ValueError(f"there is no distribution {index}; use 0 to {DISTRIBUTIONS - 1}")
    if index < LAPLACES:
        tails, order = _laplace(DECAY[index]), (index - 15) // 4
    else:
        normal = index - LAPLACES
        tails, order = _normal(DECAY[2 * normal + 1]), (normal - 7) // 4 - 2
    reach = len(tails) - 1
    # Every slot has a frequency of at least 1; the tails distribute the rest.
    shared = (1 << TOTAL_BITS - 1) - reach - 1
    above = [(tail * shared >> _FRACTION_BITS) + reach + 1 - k for k, tail in enumerate(tails)]
    total = 1 << TOTAL_BITS
    starts = (0, *reversed(above), *(total - start for start in above), total)
    return Distribution(starts, reach, max(0, order))


def _laplace(decay: int) -> list[int]:
    """P(|value| >= k) for k = 1, 2 ... up to the first that is below 2**-16."""
    tails = [decay << _FRACTION_BITS - 32]
    while tails[-1] >= _MIN_TAIL:
        tails.append(tails[-1] * decay * decay >> 64)
    return tails


def _normal(decay: int) -> list[int]:
    """The same for values k with a density of decay ** (k * k)."""
    density, ratio = 1 << _FRACTION_BITS, decay << _FRACTION_BITS - 32
    densities = []
    while density:
        densities.append(density)
        density = density * ratio >> _FRACTION_BITS
        ratio = ratio * decay * decay >> 64
    sums = list(accumulate(reversed(densities)))[::-1]  # [k]: the sum of all densities from k on
    whole = 2 * sums[0] - densities[0]
    tails = [(2 * rest << _FRACTION_BITS) // whole for rest in sums[1:]]
    reach = sum(tail >= _MIN_TAIL for tail in tails)
    return tails[: reach + 1]
