"""Rounding to and from small formats, against ml_dtypes.

All values of BF16, every 4,099th of FP32, and every value of a format with its neighbours and the
midpoints between values, in FP32. Octavo saturates where ml_dtypes gives Inf or NaN, so ml_dtypes gets
values within the format's range. E8M0, a scale, must be the smallest power of two that is not below
the value.
"""
import ml_dtypes
import numpy

import support

TYPES = {"bf16": ml_dtypes.bfloat16, "E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2,
         "E2M1": ml_dtypes.float4_e2m1fn, "E8M0": ml_dtypes.float8_e8m0fnu}


def codes_of(dtype):
    bits = {ml_dtypes.bfloat16: 16, ml_dtypes.float4_e2m1fn: 4}.get(dtype, 8)
    return numpy.arange(2**bits, dtype=numpy.uint16 if bits == 16 else numpy.uint8)


def edges(values):
    """Finite values of a format, the midpoints between them, and the FP32 values next to all of these."""
    values = numpy.unique(values[numpy.isfinite(values)].astype(numpy.float64))
    points = numpy.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(numpy.float32)
    with numpy.errstate(over="ignore"):
        return numpy.concatenate([points, numpy.nextafter(points, numpy.float32(numpy.inf)),
                                  numpy.nextafter(points, numpy.float32(-numpy.inf))])


def rounded(name, values, all_values):
    dtype = TYPES[name]
    if name == "E8M0":
        levels = all_values[:-1]  # the last is NaN
        index = numpy.minimum(numpy.searchsorted(levels, numpy.abs(values)), len(levels) - 1)
        return numpy.where(numpy.isnan(values), numpy.float32(numpy.nan), levels[index])
    if name != "bf16":
        largest = numpy.float32(ml_dtypes.finfo(dtype).max)
        values = numpy.clip(values, -largest, largest)
    if name == "E2M1":  # has no NaN
        values = numpy.where(numpy.isnan(values), numpy.float32(6), values)
    return values.astype(dtype).astype(numpy.float32)


def differing(inputs, ours, theirs):
    """Compares the values' bits, except those of NaN."""
    nan = numpy.isnan(ours) & numpy.isnan(theirs)
    at = numpy.flatnonzero((ours.view(numpy.uint32) != theirs.view(numpy.uint32)) & ~nan)
    return [f"{inputs[i]!r}: {ours[i]!r}, not {theirs[i]!r}" for i in at]


def check(report, programs, work):
    probe = programs / "against_peers_probe"
    every = numpy.arange(0, 2**32, 4099, dtype=numpy.uint64).astype(numpy.uint32).view(numpy.float32)
    bf16 = (numpy.arange(2**16, dtype=numpy.uint32) << 16).view(numpy.float32)
    for name, dtype in TYPES.items():
        codes = codes_of(dtype)
        theirs = codes.view(dtype).astype(numpy.float32)
        ours = numpy.frombuffer(support.call(probe, "decode", name, input=codes.tobytes()), numpy.float32)
        report.add(f"{name} to FP32", len(codes), differing(codes, ours, theirs))
        values = numpy.concatenate([bf16, every, edges(theirs)])
        with numpy.errstate(all="ignore"):
            expected = rounded(name, values, theirs)
        encoded = support.call(probe, "encode", name, input=values.tobytes())
        # Their decoding: a fault in both directions of Octavo's must not cancel out.
        found = numpy.frombuffer(encoded, codes.dtype).view(dtype).astype(numpy.float32)
        report.add(f"BF16 and FP32 to {name}", len(values), differing(values, found, expected))


if __name__ == "__main__":
    support.main(check)
