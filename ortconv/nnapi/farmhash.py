"""FarmHash's Fingerprint64 of short and long byte strings."""

from __future__ import annotations

MASK = (1 << 64) - 1
K0, K1, K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def _word(data: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _turn(x: int, by: int) -> int:
    x &= MASK
    return (x >> by | x << (64 - by)) & MASK


def _mix(x: int) -> int:
    x &= MASK
    return x ^ x >> 47


def _join(a: int, b: int, by: int) -> int:
    """Two words to one."""
    x = _mix((a ^ b) * by)
    return _mix((b ^ x) * by) * by & MASK


def fingerprint64(data: bytes) -> int:
    """64 bits, the same on every machine."""
    size = len(data)
    if size > 64:
        return _long(data)
    by = K2 + 2 * size
    if size > 32:
        return _to_64(data, by)
    if size > 16:
        return _to_32(data, by)
    if size >= 8:
        a, b = _word(data, 0) + K2, _word(data, size - 8)
        return _join((_turn(b, 37) * by + a) & MASK, (_turn(a, 25) + b) * by & MASK, by)
    if size >= 4:
        return _join(size + (_word(data, 0, 4) << 3), _word(data, size - 4, 4), by)
    if size:
        low, high = data[0] + (data[size >> 1] << 8), size + (data[-1] << 2)
        return _mix(low * K2 ^ high * K0) * K2 & MASK
    return K2


def _ends(data: bytes, by: int, first: int) -> tuple[int, int, int]:
    """What the first and last 16 bytes give."""
    a, b = _word(data, 0) * first, _word(data, 8)
    c, d = _word(data, len(data) - 8) * by, _word(data, len(data) - 16) * K2
    return a, (_turn(a + b, 43) + _turn(c, 30) + d) & MASK, (a + _turn(b + K2, 18) + c) & MASK


def _to_32(data: bytes, by: int) -> int:
    _, y, z = _ends(data, by, K1)
    return _join(y, z, by)


def _to_64(data: bytes, by: int) -> int:
    a, y, z = _ends(data, by, K2)
    z = _join(y, z, by)
    e, f = _word(data, 16) * by, _word(data, 24)
    g = (y + _word(data, len(data) - 32)) * by
    h = (z + _word(data, len(data) - 24)) * by
    return _join((_turn(e + f, 43) + _turn(g, 30) + h) & MASK, (e + _turn(f + a, 18) + g) & MASK, by)


def _weak(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """32 bytes and two seeds."""
    w, x, y, z = (_word(data, at + 8 * n) for n in range(4))
    a += w
    b = _turn(b + a + z, 21)
    c = a
    a += x + y
    b += _turn(a, 44)
    return (a + z) & MASK, (b + c) & MASK


def _long(data: bytes) -> int:
    size = len(data)
    seed = 81
    x, y = seed * K2 + _word(data, 0), seed * K1 + 113
    z = _mix(y * K2 + 113) * K2
    v, w = (0, 0), (0, 0)
    end = (size - 1) // 64 * 64
    for at in range(0, end, 64):
        x = _turn(x + y + v[0] + _word(data, at + 8), 37) * K1
        y = _turn(y + v[1] + _word(data, at + 48), 42) * K1
        x ^= w[1]
        y += v[0] + _word(data, at + 40)
        z = _turn(z + w[0], 33) * K1
        v = _weak(data, at, v[1] * K1, x + w[0])
        w = _weak(data, at + 32, z + w[1], y + _word(data, at + 16))
        x, z = z, x & MASK
    by = K1 + ((z & 0xFF) << 1)
    at = size - 64
    w = (w[0] + ((size - 1) & 63)) & MASK, w[1]
    v = (v[0] + w[0]) & MASK, v[1]
    w = (w[0] + v[0]) & MASK, w[1]
    x = _turn(x + y + v[0] + _word(data, at + 8), 37) * by
    y = _turn(y + v[1] + _word(data, at + 48), 42) * by
    x ^= w[1] * 9
    y += v[0] * 9 + _word(data, at + 40)
    z = _turn(z + w[0], 33) * by
    v = _weak(data, at, v[1] * by, x + w[0])
    w = _weak(data, at + 32, z + w[1], y + _word(data, at + 16))
    x, z = z, x & MASK
    first = _join(v[0], w[0], by) + _mix(y) * K0 + z
    return _join(first & MASK, (_join(v[1], w[1], by) + x) & MASK, by)
