"""Print the integers on which the entropy coder's distributions rest.

They are normative: imgmlp/codec/bitstream/probabilities.py holds them as literals, and a test
compares the two. Decimal arithmetic with 60 digits, rounded once, so that every machine prints the
same.

    python tools/entropy_tables.py
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext


def decay(index: int) -> int:
    """exp(-1 / 2v) for v = 2 ** ((index - 15) / 4), as a fraction of 2**32."""
    v = Decimal(2) ** (Decimal(index - 15) / 4)
    return int(((-1 / (2 * v)).exp() * 2**32).quantize(Decimal(1), ROUND_HALF_EVEN))


with localcontext() as context:
    context.prec = 60
    DECAY = tuple(decay(index) for index in range(80))

if __name__ == "__main__":
    print("DECAY = (")
    for begin in range(0, len(DECAY), 8):
        print("    " + " ".join(f"{value}," for value in DECAY[begin : begin + 8]))
    print(")")
