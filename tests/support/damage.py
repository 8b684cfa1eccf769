"""What may happen to a model file: bytes lost or changed, and headers and arrays that somebody made up.

The second kind carries a checksum that is right, so only the checks of what the file says stand between it and a model.
"""

from __future__ import annotations

import copy
import io

import numpy as np

from dsmgp._util.archive import dump_archive, load_archive


def unpacked(content):
    """Header and arrays of a sound file."""
    file = load_archive(io.BytesIO(content), len(content), "file")
    return file.header, dict(file.arrays)


def packed(header, arrays):
    """A file of them, with a checksum that is right."""
    file = io.BytesIO()
    header = {k: v for k, v in header.items() if k != "checksum"}
    dump_archive(file, header, {name: np.asarray(array) for name, array in arrays.items()})
    return file.getvalue()


def worn(content, others, rng):
    """A file that something has happened to on its way, or that was joined from pieces of several."""
    at, n = int(rng.integers(len(content))), int(rng.integers(1, 200))
    other = others[int(rng.integers(len(others)))]
    match rng.integers(8):
        case 0:
            return content[:at]
        case 1:
            return content + rng.bytes(n)
        case 2:
            return content[:at] + rng.bytes(n) + content[at:]
        case 3:
            return content[:at] + content[at + n :]
        case 4:
            return content[:at] + bytes(n) + content[at + n :]
        case 5:  # the head of one and the tail of another
            return content[:at] + other[at:]
        case 6:  # two pieces change places
            return content[at:] + content[:at]
        case _:
            bit = bytes([content[at] ^ (1 << int(rng.integers(8)))])
            return content[:at] + bit + content[at + 1 :]


ODD_ENTRIES = (None, True, -1, 0, 1, 3, 10**30, 1.5, -0.5, float("nan"), float("inf"), 1e308, "", "x",
               "ray", "/etc/passwd", "nan", [], [[]], {}, {"class": "eval"}, {"module": 3})  # fmt: skip
DEEP = [[[[[[[[[[]]]]]]]]]]


def made_up(content, others, rng):
    """A file with a right checksum in which one to three entries or arrays are not what they were."""
    header, arrays = unpacked(content)
    for _ in range(int(rng.integers(1, 4))):
        if rng.uniform() < 0.5:
            change_entry(header, rng)
        else:
            _change_array(arrays, unpacked(others[int(rng.integers(len(others)))])[1], rng)
    return packed(header, arrays)


def _places(entry):
    """All containers in a header, with the keys they have."""
    keys = entry.keys() if isinstance(entry, dict) else range(len(entry))
    for key in list(keys):
        yield entry, key
        if isinstance(entry[key], (dict, list)):
            yield from _places(entry[key])


def change_entry(header, rng):
    """Replace one entry of a header by something odd."""
    places = list(_places(header))
    home, key = places[int(rng.integers(len(places)))]
    match rng.integers(5):
        case 0 if isinstance(home, dict):
            del home[key]
        case 1:
            other, from_key = places[int(rng.integers(len(places)))]
            home[key] = copy.deepcopy(other.get(from_key) if isinstance(other, dict) else None)
        case 2 if isinstance(home[key], (int, float)):
            home[key] = home[key] * float(rng.choice([-1.0, 1e-9, 0.5, 2.0, 1e9]))
        case 3:
            home[key] = copy.deepcopy(DEEP)
        case _:
            home[key] = copy.deepcopy(ODD_ENTRIES[int(rng.integers(len(ODD_ENTRIES)))])


ODD_NUMBERS = (
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -1.0,
    1e308,
    -1e308,
    1e160,
    1e-308,
    1e30,
    2.0**31,
    -(2.0**62),
)


def _change_array(arrays, others, rng):
    names = sorted(arrays)
    if not names:
        return
    name = names[int(rng.integers(len(names)))]
    found = arrays[name].copy()
    match rng.integers(9):
        case 0:
            del arrays[name]
            return
        case 1:
            arrays[name] = found[: len(found) // 2] if found.ndim else found
            return
        case 2:
            with np.errstate(all="ignore"):
                dtype = rng.choice([np.float32, np.int64, np.int32, np.float64])
                arrays[name] = found.astype(dtype)
            return
        case 3 if name in others:
            arrays[name] = others[name]
            return
        case 4:
            other = names[int(rng.integers(len(names)))]
            arrays[name], arrays[other] = arrays[other], found
            return
        case 5:
            arrays[name] = rng.permutation(found.reshape(-1)).reshape(found.shape)
            return
        case 6:
            with np.errstate(all="ignore"):
                factor = rng.choice([-1.0, 0.0, 1e-12, 1.0 + 1e-6, 10.0, 1e9, 1e150])
                arrays[name] = (found * factor).astype(found.dtype)
            return
    if found.size:
        flat = found.reshape(-1)
        with np.errstate(all="ignore"):
            value = np.array(ODD_NUMBERS[int(rng.integers(len(ODD_NUMBERS)))]).astype(found.dtype)
        flat[int(rng.integers(found.size))] = value
        arrays[name] = flat.reshape(found.shape)
