"""Print the integer tables of the entropy coder's distributions.

The tables are normative: imgmlp/codec/bitstream/probabilities.py and
imgmlp/codec/latent/probabilities.py contain them as literals, and tests compare them. They are
computed with 60 decimal digits and rounded once, so every machine prints the same integers.

    python tools/entropy_tables.py
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext


def decay(index: int) -> int:
    """exp(-1 / 2v) for v = 2 ** ((index - 15) / 4), as a fraction of 2**32."""
    v = Decimal(2) ** (Decimal(index - 15) / 4)
    return int(((-1 / (2 * v)).exp() * 2**32).quantize(Decimal(1), ROUND_HALF_EVEN))


def latent_decay(index: int) -> int:
    """exp(-1 / 64b) for b = exp((index - 112) / 32), as a fraction of 2**31."""
    b = (Decimal(index - 112) / 32).exp()
    return int(((-1 / (64 * b)).exp() * 2**31).quantize(Decimal(1), ROUND_HALF_EVEN))


with localcontext() as context:
    context.prec = 60
    DECAY = tuple(decay(index) for index in range(80))
    LATENT_DECAY = tuple(latent_decay(index) for index in range(256))

if __name__ == "__main__":
    for folder, values in (("bitstream", DECAY), ("latent", LATENT_DECAY)):
        print(f"# imgmlp/codec/{folder}/probabilities.py\nDECAY = (")
        for begin in range(0, len(values), 8):
            print("    " + " ".join(f"{value}," for value in values[begin : begin + 8]))
        print(")")
