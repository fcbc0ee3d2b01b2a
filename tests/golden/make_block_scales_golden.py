#!/usr/bin/env python3
"""Writes block_scales.golden beside this file: NVFP4 copies of matrices, and swizzled block scales.

The NVFP4 numbers follow Transformer Engine's reference quantisation in NumPy, with the casts of
ml_dtypes. The swizzled scales are torchao's `to_blocked`. Needs NumPy, ml_dtypes, PyTorch and torchao.

README.md gives the file layout. For each matrix NAME of BF16 values, [rows, columns]:
- NAME:values
- NAME:COPY.codes, bits of E2M1; COPY is `rows` for the matrix, `columns` for its transpose, and
  `rotated` for the transpose after the Hadamard transform
- NAME:COPY.scales, bits of E4M3, one for each block of 1 x 16 elements, and NAME:COPY.scale, of all
- NAME:square.codes and so on: the matrix with blocks of 16 x 16
`swizzled:ROWSxBLOCKS` has 1 + the row-major number of the scale at each place, and 0 in padding.
"""

import pathlib

import ml_dtypes
import numpy as np
import torch
from torchao.prototype.mx_formats.utils import to_blocked

from make_llama_golden import write_golden

SHAPES = ((1, 1), (130, 5), (96, 9))
SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], np.float32)
LARGEST = np.float32(np.finfo(np.float32).max)


def hadamard():
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < 16:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return SIGNS[:, None] * matrix / np.float32(4)


def rotate(matrix):
    rows, columns = matrix.shape
    exact = matrix.astype(np.float64).reshape(rows, columns // 16, 16) @ hadamard().astype(np.float64)
    return exact.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32).reshape(rows, columns)


def quantize(matrix, block_rows):
    rows, columns = matrix.shape
    one = np.float32(1)
    amax = np.abs(matrix).max()
    encode = one if amax == 0 else np.minimum(np.float32(448 * 6) / amax, LARGEST)
    blocks = matrix.reshape(rows // block_rows, block_rows, columns // 16, 16)
    block_amax = np.abs(blocks).max(axis=(1, 3))
    scales = np.minimum(block_amax * (encode * (one / np.float32(6))), np.float32(448))
    scales = scales.astype(ml_dtypes.float8_e4m3fn)
    with np.errstate(divide="ignore"):
        factors = one / (scales.astype(np.float32) * (one / encode))
    # A block whose scale is 0 has no values; Transformer Engine multiplies it by the largest float.
    factors = np.where(scales.astype(np.float32) == 0, np.float32(0), np.minimum(factors, LARGEST))
    scaled = np.clip(blocks * factors[:, None, :, None], -6, 6).reshape(rows, columns)
    bits = lambda array: array.view(np.uint8).astype(np.int32)
    return {"codes": bits(scaled.astype(ml_dtypes.float4_e2m1fn)), "scales": bits(scales),
            "scale": np.array([one / encode], np.float32)}


def matrices():
    """Numbers whose sums FP32 holds exactly, so that the order of sums does not matter."""
    count = np.arange(32 * 32)
    numbers = ((count * 37 + 11) * (count + 3) % 509 - 254).reshape(32, 32).astype(np.float32)
    numbers = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    mixed = numbers * np.exp2(-np.float32(np.arange(32) % 14))
    mixed[3, :] *= np.float32(64)  # outliers
    mixed[16:, 16:] = 0
    return {"plain": numbers / np.float32(64), "mixed": mixed, "zeros": np.zeros((16, 16), np.float32)}


def swizzled(rows, blocks):
    numbers = torch.arange(1, rows * blocks + 1, dtype=torch.int32).reshape(rows, blocks)
    return to_blocked(numbers, use_triton_kernel=False).numpy().astype(np.int32)


def main():
    tensors = [(f"swizzled:{rows}x{blocks}", swizzled(rows, blocks)) for rows, blocks in SHAPES]
    for name, values in matrices().items():
        tensors.append((f"{name}:values", values))
        turned = np.ascontiguousarray(values.T)
        for copy, matrix, block_rows in (("rows", values, 1), ("columns", turned, 1),
                                         ("rotated", rotate(turned), 1), ("square", values, 16)):
            for part, numbers in quantize(matrix, block_rows).items():
                tensors.append((f"{name}:{copy}.{part}", numbers))
    write_golden(pathlib.Path(__file__).with_name("block_scales.golden"), {}, tensors)


if __name__ == "__main__":
    main()
