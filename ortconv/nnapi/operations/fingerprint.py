"""The 64-bit fingerprint of a byte string (FarmHash Fingerprint64), with which hash projections are defined."""

from __future__ import annotations

K0, K1, K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
MASK = (1 << 64) - 1
SEED = 81


def fingerprint64(data: bytes) -> int:
    """The fingerprint, an unsigned number of 64 bits."""
    if len(data) <= 16:
        return _up_to_16(data)
    if len(data) <= 32:
        return _up_to_32(data)
    if len(data) <= 64:
        return _up_to_64(data)
    return _long(data)


def _word(data: bytes, at: int, size: int = 8) -> int:
    at = at if at >= 0 else len(data) + at
    return int.from_bytes(data[at : at + size], "little")


def _rotate(x: int, by: int) -> int:
    x &= MASK
    return (x >> by | x << 64 - by) & MASK


def _mix(x: int) -> int:
    x &= MASK
    return x ^ x >> 47


def _join(u: int, v: int, mul: int) -> int:
    v &= MASK
    return _mix((v ^ _mix((u & MASK ^ v) * mul)) * mul) * mul & MASK


def _up_to_16(data: bytes) -> int:
    size = len(data)
    mul = K2 + size * 2 & MASK
    if size >= 8:
        a, b = _word(data, 0) + K2 & MASK, _word(data, -8)
        return _join(_rotate(b, 37) * mul + a, (_rotate(a, 25) + b) * mul, mul)
    if size >= 4:
        return _join(size + (_word(data, 0, 4) << 3), _word(data, -4, 4), mul)
    if size:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[-1] << 2)
        return _mix(y * K2 ^ z * K0) * K2 & MASK
    return K2


def _edges(data: bytes, first: int, mul: int) -> tuple[int, int, int]:
    """The first and last 16 bytes, combined to one number each, and the first of these numbers weighted."""
    a, b = _word(data, 0) * first & MASK, _word(data, 8)
    c, d = _word(data, -8) * mul & MASK, _word(data, -16) * K2
    return _rotate(a + b, 43) + _rotate(c, 30) + d & MASK, a + _rotate(b + K2, 18) + c, a


def _up_to_32(data: bytes) -> int:
    mul = K2 + len(data) * 2 & MASK
    y, z, _ = _edges(data, K1, mul)
    return _join(y, z, mul)


def _up_to_64(data: bytes) -> int:
    mul = K2 + len(data) * 2 & MASK
    y, z, a = _edges(data, K2, mul)
    z = _join(y, z, mul)
    e, f = _word(data, 16) * mul & MASK, _word(data, 24)
    g, h = (y + _word(data, -32)) * mul & MASK, (z + _word(data, -24)) * mul
    return _join(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, mul)


def _block(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """Mix 32 bytes into two numbers."""
    w, x, y, z = (_word(data, at + step) for step in (0, 8, 16, 24))
    a += w
    b = _rotate(b + a + z, 21)
    total = a + x + y
    return total + z & MASK, b + _rotate(total, 44) + a & MASK


HashPair = tuple[int, int]


def _round(
    data: bytes, at: int, x: int, y: int, z: int, v: HashPair, w: HashPair, mul: int, times: int
) -> tuple[int, int, int, HashPair, HashPair]:
    """Mix 64 bytes into the state. The first and the third number are swapped."""
    x = _rotate(x + y + v[0] + _word(data, at + 8), 37) * mul & MASK
    y = _rotate(y + v[1] + _word(data, at + 48), 42) * mul & MASK
    x ^= w[1] * times & MASK
    y = y + v[0] * times + _word(data, at + 40) & MASK
    z = _rotate(z + w[0], 33) * mul & MASK
    v = _block(data, at, v[1] * mul, x + w[0])
    w = _block(data, at + 32, z + w[1], y + _word(data, at + 16))
    return z, y, x, v, w


def _long(data: bytes) -> int:
    y = SEED * K1 + 113 & MASK
    z = _mix(y * K2 + 113) * K2 & MASK
    x = SEED * K2 + _word(data, 0) & MASK
    v = w = (0, 0)
    rest = len(data) - 1 & 63
    for at in range(0, len(data) - 1 - rest, 64):
        x, y, z, v, w = _round(data, at, x, y, z, v, w, K1, 1)
    mul = K1 + ((z & 0xFF) << 1) & MASK
    head = w[0] + rest
    v = v[0] + head & MASK, v[1]
    w = head + v[0] & MASK, w[1]
    x, y, z, v, w = _round(data, len(data) - 64, x, y, z, v, w, mul, 9)
    return _join(_join(v[0], w[0], mul) + _mix(y) * K0 + z, _join(v[1], w[1], mul) + x, mul)
