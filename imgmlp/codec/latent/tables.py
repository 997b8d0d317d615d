"""Probabilities of latents, as whole numbers that are the same on every machine.

Part of the file format (docs/format-imlp.md): a change here would make files unreadable. A latent
is Laplace distributed around a mean, in steps of a 32nd, with one of 128 scales exp((i - 56) / 16).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from imgmlp.codec.distribution import TOTAL_BITS

Array = np.ndarray[Any, Any]

MEAN_BITS = 5  # of the fraction of a mean
SCALE_BITS = 4  # of the fraction of a scale's logarithm
SCALES = 128
MIDDLE = 56  # number of the scale 1
REACH = 128  # a latent is coded as its distance, -REACH to REACH - 1, from the rounded mean
PLACES = 2 * REACH
PHASES = 1 << MEAN_BITS  # of a mean between whole numbers
FLOOR = 16  # the frequency that every place has at least, of 2**26
LAST = PHASES * (REACH + 1) - 1  # distance of the last tail, in steps of a mean
_ONE = 32  # bits of the fraction of a tail

# exp(-1 / 32b) for the scales b, as fractions of 2**32: tools/entropy_tables.py
DECAY = (
    1525902544, 1624637861, 1723203525, 1821238257, 1918408275, 2014408788, 2108964818, 2201831425,
    2292793429, 2381664704, 2468287122, 2552529232, 2634284728, 2713470772, 2790026231, 2863909859,
    2935098475, 3003585163, 3069377520, 3132495970, 3192972165, 3250847471, 3306171570, 3359001144,
    3409398688, 3457431411, 3503170247, 3546688967, 3588063376, 3627370614, 3664688528, 3700095126,
    3733668108, 3765484457, 3795620087, 3824149560, 3851145835, 3876680072, 3900821471, 3923637149,
    3945192045, 3965548855, 3984767983, 4002907527, 4020023267, 4036168678, 4051394954, 4065751037,
    4079283667, 4092037426, 4104054794, 4115376215, 4126040155, 4136083169, 4145539976, 4154443520,
    4162825044, 4170714161, 4178138919, 4185125875, 4191700155, 4197885527, 4203704461, 4209178191,
    4214326777, 4219169162, 4223723231, 4228005861, 4232032974, 4235819592, 4239379876, 4242727179,
    4245874087, 4248832460, 4251613472, 4254227649, 4256684905, 4258994577, 4261165454, 4263205812,
    4265123442, 4266925673, 4268619407, 4270211135, 4271706966, 4273112647, 4274433582, 4275674859,
    4276841258, 4277937279, 4278967151, 4279934853, 4280844123, 4281698480, 4282501229, 4283255479,
    4283964152, 4284629996, 4285255593, 4285843370, 4286395609, 4286914454, 4287401921, 4287859904,
    4288290184, 4288694435, 4289074227, 4289431040, 4289766262, 4290081197, 4290377073, 4290655040,
    4290916184, 4291161519, 4291392004, 4291608535, 4291811957, 4292003064, 4292182599, 4292351264,
    4292509716, 4292658573, 4292798416, 4292929791, 4293053210, 4293169154, 4293278076, 4293380402,
)  # fmt: skip


def tails() -> Array:
    """uint64 [SCALES, distances]: P(|latent - mean| >= k / 32), of 2**32.

    By products of the powers that a number's binary digits name, so that all of a scale's take
    few operations on arrays.
    """
    count = LAST + 1
    found = np.empty((SCALES, count), np.uint64)
    found[:, 0] = 1 << _ONE
    power = np.array(DECAY, np.uint64)[:, None]  # [SCALES, 1]
    known = 1
    while known < count:
        more = min(known, count - known)
        found[:, known : known + more] = found[:, :more] * power >> np.uint64(_ONE)
        power = power * power >> np.uint64(_ONE)
        known += more
    return found


@cache
def shares() -> Array:
    """int32 [SCALES, distances]: share of all below a distance k / 32 from the mean.

    From k = -LAST to LAST, in units of frequency without what every place has at least.
    """
    tail = tails().astype(np.int64)
    below = np.concatenate([tail[:, :0:-1], (2 << _ONE) - tail], axis=1)  # of 2**33
    shared = (1 << TOTAL_BITS) - PLACES * FLOOR
    return (below * shared >> _ONE + 1).astype(np.int32)


def edge(numbers: Array, places: Array) -> Array:
    """int64: the sum of the frequencies before a place, of 2**26; the arrays broadcast.

    Number PHASES * scale + phase: phase p is that of means p - PHASES / 2 steps above a whole
    number m, place d + REACH that of the latent m + d.
    """
    scale, phase = numbers >> MEAN_BITS, numbers & PHASES - 1
    inside = shares()[scale, PHASES * places + (PHASES - 1 - phase)] + FLOOR * places
    ends = np.where(places == 0, 0, 1 << TOTAL_BITS)
    return np.where((places > 0) & (places < PLACES), inside, ends)


class Lists(dict[int, list[int]]):
    """Of a number, the edges of all places and of their end; made when they are wanted first."""

    def __missing__(self, number: int) -> list[int]:
        found: list[int] = edge(np.array(number), np.arange(PLACES + 1)).tolist()
        self[number] = found
        return found
