#!/usr/bin/env python3
"""Writes ../support/delayed_trace.inc: delayed scaling followed for 20 steps, as literals.

The rules, applied here in numpy float32 and shared with no C++:
  - amax 0: nothing moves.
  - amax Inf or NaN: it is dropped and counted; history and scale stay.
  - otherwise it enters the history (4 entries, newest first), and
    scale = float32(float32(format_max * 2^-margin) / float32(amax)),
    where amax is the largest entry (`max`) or the newest (`most_recent`);
    a scale that overflows becomes FLT_MAX.
"""

import pathlib

import numpy as np

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "support" / "delayed_trace.inc"
HISTORY_LENGTH = 4
FLT_MAX = np.finfo(np.float32).max

# The scales of 2^-119 and 2^-120 straddle FLT_MAX, depending on format and margin; 2^-149 is the
# smallest float of all.
OBSERVED = [0.0, 1e-40, 3.0, 0.7, np.inf, 5.5, 0.1, np.nan, 0.0, 1e30, FLT_MAX, 0.02, 0.02, 1e-38,
            2.0**-119, 2.0**-120, 2.0**-149, np.inf, 448.0, 6.5]


def literal(value):
    if np.isnan(value):
        return "not_a_number"
    if np.isinf(value):
        return "infinity"
    mantissa, exponent = float(value).hex().split("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}p{exponent}F"


def scale_for(format_max, margin, amax):
    numerator = np.float32(format_max * 2.0**-margin)
    with np.errstate(over="ignore"):
        scale = numerator / amax
    return FLT_MAX if np.isinf(scale) else scale


def trace(format_max, reduction, margin):
    history = [np.float32(0)] * HISTORY_LENGTH
    scale = np.float32(1)
    dropped = 0
    for step, amax in enumerate(np.array(OBSERVED, dtype=np.float32), start=1):
        if not np.isfinite(amax):
            dropped += 1
        elif amax > 0:
            history = [amax] + history[:-1]
            chosen = max(history) if reduction == "max" else amax
            scale = scale_for(format_max, margin, chosen)
        assert scale.dtype == np.float32
        yield step, amax, history, scale, dropped


def main():
    lines = ["// Made by tests/golden/make_delayed_trace.py; do not edit.",
             "// {step, observed amax, {history, newest first}, scale, dropped so far}"]
    for format_name, format_max in (("e4m3", 448.0), ("e5m2", 57344.0)):
        for reduction in ("max", "most_recent"):
            for margin in (0, 1, 2):
                lines.append(f'{{"{format_name}", {literal(np.float32(format_max))}, '
                             f"DelayedReduction::{reduction}, {margin}, {{{{")
                for step, amax, history, scale, dropped in trace(format_max, reduction, margin):
                    entries = ", ".join(literal(entry) for entry in history)
                    lines.append(f"  {{{step}, {literal(amax)}, {{{entries}}}, "
                                 f"{literal(scale)}, {dropped}}},")
                lines.append("}}},")
    OUTPUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
