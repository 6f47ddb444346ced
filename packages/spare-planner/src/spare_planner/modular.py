"""Modular Golomb rulers: residues whose pairwise differences are all distinct mod N.

A plain ruler of length L needs N >= 2L + 1; these go further, up to the bound r(r-1) <= N-1, but
only for some N:

* Singer (1938): q + 1 residues mod q^2 + q + 1, for a prime power q;
* Bose and Chowla (1962): q residues mod q^2 - 1, for a prime power q;
* Ruzsa (1993): p - 1 residues mod p(p - 1), for a prime p.

Any subset of such a set has the property too, so r may be smaller.
"""

import itertools
import math

__all__ = ["MODULAR", "modular_ruler"]

MODULAR = ("singer", "bose-chowla", "ruzsa")
"""Names of the constructions, in the order in which they are tried."""

_LARGEST_FIELD = 300_000  # elements; keeps the tables below within a second or two


def modular_ruler(construction: str, modulus: int, marks: int) -> tuple[int, ...] | None:
    """Return that many residues, from 0 up, or None where the construction has none.

    >>> modular_ruler("singer", 21, 5)
    (0, 1, 4, 14, 16)
    """
    residues = _CONSTRUCTIONS[construction](modulus, marks)
    if residues is None:
        return None
    ordered = sorted(residues)
    return tuple(residue - ordered[0] for residue in ordered[:marks])


def _singer(modulus: int, marks: int) -> list[int] | None:
    """Logarithms of a line in the projective plane over GF(q)."""
    q = (math.isqrt(4 * modulus - 3) - 1) // 2
    if q * q + q + 1 != modulus or marks > q + 1 or not _field_fits(q, 3):
        return None
    return [0, *(log % modulus for log in _logs_of_shifts(q, 3))]


def _bose_chowla(modulus: int, marks: int) -> list[int] | None:
    """Logarithms of theta + a, a in GF(q), for a primitive theta of GF(q^2)."""
    q = math.isqrt(modulus + 1)
    if q * q - 1 != modulus or marks > q or not _field_fits(q, 2):
        return None
    return _logs_of_shifts(q, 2)


def _ruzsa(modulus: int, marks: int) -> list[int] | None:
    """The residues that are i mod p - 1 and g^i mod p, for a primitive root g of p."""
    p = (math.isqrt(4 * modulus + 1) + 1) // 2
    if p * (p - 1) != modulus or marks > p - 1 or _prime_power(p) != (p, 1):
        return None
    root = next(g for g in range(1, p) if len({pow(g, i, p) for i in range(p - 1)}) == p - 1)
    return [(i * p + (p - 1) * (p - pow(root, i, p))) % modulus for i in range(1, p)]


_CONSTRUCTIONS = {"singer": _singer, "bose-chowla": _bose_chowla, "ruzsa": _ruzsa}


def _field_fits(q: int, degree: int) -> bool:
    return q**degree <= _LARGEST_FIELD and _prime_power(q) is not None


def _prime_power(q: int) -> tuple[int, int] | None:
    """Return p and m if q is p^m for a prime p."""
    if q < 2:
        return None
    p = next((d for d in range(2, math.isqrt(q) + 1) if q % d == 0), q)
    power, rest = 0, q
    while rest % p == 0:
        rest //= p
        power += 1
    return (p, power) if rest == 1 else None


def _logs_of_shifts(q: int, degree: int) -> list[int]:
    """Return log(theta + a) for all a of GF(q), theta primitive in GF(q^degree)."""
    found = _prime_power(q)
    assert found is not None
    p, power = found
    elements = _powers_of_a_primitive_element(p, power * degree)
    logs = {element: log for log, element in enumerate(elements)}
    subfield = range(0, len(elements), len(elements) // (q - 1))
    theta = elements[1]
    shifted = (
        tuple((x + y) % p for x, y in zip(theta, elements[log], strict=True)) for log in subfield
    )
    return [1, *(logs[element] for element in shifted)]


def _powers_of_a_primitive_element(p: int, degree: int) -> list[tuple[int, ...]]:
    """Return 1, x, x^2, ... of GF(p^degree) as coefficients over GF(p), lowest first.

    The field is built on the first monic polynomial of which x is a primitive root.
    """
    order = p**degree - 1
    maximal = [order // factor for factor in _prime_factors(order)]
    one = (1, *([0] * (degree - 1)))
    # With a constant that is not 0, x is invertible.
    for constant, *rest in itertools.product(range(1, p), *([range(p)] * (degree - 1))):
        modulus = (constant, *rest)
        if _power(p, modulus, order) == one and not any(
            _power(p, modulus, exponent) == one for exponent in maximal
        ):
            powers = [one]
            while len(powers) < order:
                powers.append(_times_x(p, modulus, powers[-1]))
            return powers
    raise AssertionError("every finite field has a primitive polynomial")


def _power(p: int, modulus: tuple[int, ...], exponent: int) -> tuple[int, ...]:
    """Return x^exponent modulo a monic polynomial, given without its leading 1."""
    result = (1, *([0] * (len(modulus) - 1)))
    for bit in f"{exponent:b}":
        square = tuple([0] * len(modulus))
        for coefficient in reversed(result):
            shifted = _times_x(p, modulus, square)
            square = tuple((s + coefficient * r) % p for s, r in zip(shifted, result, strict=True))
        result = _times_x(p, modulus, square) if bit == "1" else square
    return result


def _times_x(p: int, modulus: tuple[int, ...], element: tuple[int, ...]) -> tuple[int, ...]:
    top = element[-1]
    shifted = (0, *element[:-1])
    return tuple((s - top * m) % p for s, m in zip(shifted, modulus, strict=True))


def _prime_factors(n: int) -> list[int]:
    factors = []
    divisor = 2
    while n > 1:
        if divisor * divisor > n:
            divisor = n
        if n % divisor == 0:
            factors.append(divisor)
            while n % divisor == 0:
                n //= divisor
        divisor += 1
    return factors
