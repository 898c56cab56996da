"""How fast this processor multiplies matrices in bfloat16 and in float32, in GFLOP/s: what policy.dtype=auto goes by.

    OMP_NUM_THREADS=1 python benchmarks/precision.py

The shapes are a layer of SmolLM2-135M at 192 tokens (sampling 16 answers to 12 questions) and at 1,257 (a micro-batch
of packed trees), and its output layer.
"""

import torch
from machine import describe, seconds
from querylect.rollouts.policy import cpu_has_fast_bfloat16

SHAPES = ((192, 576, 1536), (1257, 576, 1536), (192, 576, 49152))
LEAST_SECONDS = 0.5


def rate(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> float:
    """GFLOP/s of the fastest of the products that fit into half a second."""
    x, weight = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
    times = [seconds(lambda: torch.nn.functional.linear(x, weight))]
    while sum(times) < LEAST_SECONDS:
        times.append(seconds(lambda: torch.nn.functional.linear(x, weight)))
    return 2e-9 * rows * inputs * outputs / min(times)


def main() -> None:
    """Print a line for each shape."""
    print(describe("torch"), f"{torch.get_num_threads()} threads", sep="; ")
    print(f"{'rows × in × out':>20}  float32  bfloat16  ratio")
    for shape in SHAPES:
        single, half = (rate(*shape, dtype) for dtype in (torch.float32, torch.bfloat16))
        print(f"{' × '.join(map(str, shape)):>20} {single:8.0f} {half:9.0f} {half / single:6.1f}")
    print("policy.dtype=auto takes", "bfloat16" if cpu_has_fast_bfloat16() else "float32")


if __name__ == "__main__":
    main()
