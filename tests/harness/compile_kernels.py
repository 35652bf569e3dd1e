"""Compile the GPU's kernels to machine code for a Hopper GPU, which needs no GPU. Prints one line per kernel.

It is a separate program, because a process either compiles kernels or interprets them.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from penstock.worker.engine.cuda.kernels import attention_kernels, plan_kernels, row_kernels, sampling_kernels

TARGET = GPUTarget("cuda", 90, 32)
LLAMA_1B = {
    "HEADS": 32,
    "KV_HEADS": 8,
    "HEAD_SIZE": 64,
    "WIDTH": 64,
    "HALF": 32,
    "DIM": 2048,
    "HIDDEN": 8192,
    "BLOCK_SIZE": 16,
    "SCALE": 0.1,
    "EPS": 1e-5,
    "TILE_KEYS": 64,
    "MIN_SPLIT": 128,
    "MAX_SPLITS": 64,
    "DOUBLINGS": 4,
    "TILES_AT_ONCE": 64,
    "COLUMNS": 1024,
    "VOCAB": 128_256,
    "BLOCK": 4096,
    "CUTS": 8,
    "WORDS": 8,
    "NORMS": True,
    "UPDATES": True,
}
POINTERS = {
    **dict.fromkeys(("qkv", "k", "v", "update", "gate_up", "out"), "*bf16"),
    **dict.fromkeys(("partials", "weights", "residual", "weight", "cos", "sin", "norms"), "*fp32"),
    **dict.fromkeys(("counts", "positions", "row_parts", "first_rows", "table_offsets", "tables"), "*i32"),
    **dict.fromkeys(("logits", "scores"), "*fp32"),
    **dict.fromkeys(("words", "counts", "count_rows", "mask_rows"), "*i32"),
    "penalties": "*fp64",
    "masks": "*i8",
    **dict.fromkeys(("splits", "first_splits", "tiles", "tile_count"), "*i32"),
}
KERNELS = [
    (plan_kernels.split_kernel, {"WIDTH": 256}),
    (plan_kernels.tile_kernel, {"WIDTH": 256, "TILE_TOKENS": 16}),
    (attention_kernels.decode_kernel, {"TILE_ROWS": 16}),
    (attention_kernels.combine_kernel, {}),
    (attention_kernels.prefill_kernel, {"TILE_ROWS": 64, "TILE_TOKENS": 16}),
    (row_kernels.norm_kernel, {"WIDTH": 2048}),
    (row_kernels.rotate_kernel, {"WIDTH": 32}),
    (row_kernels.silu_kernel, {}),
    (sampling_kernels.adjust_kernel, {}),
    (sampling_kernels.draw_kernel, {"out": "*i32", "num_warps": 16}),
]


def compile_kernel(kernel, sizes):
    names = kernel.arg_names
    pointers = POINTERS | {name: each for name, each in sizes.items() if name in POINTERS}
    constants = {name: each for name, each in (LLAMA_1B | sizes).items() if name in names and name not in pointers}
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name in POINTERS}
    places = {(names.index(name),): value for name, value in constants.items()}
    options = {"num_warps": sizes.get("num_warps", 4)}
    return triton.compile(ASTSource(kernel, signature, places, aligned), target=TARGET, options=options)


if __name__ == "__main__":
    for kernel, sizes in KERNELS:
        result = compile_kernel(kernel, sizes)
        print(kernel.__name__, len(result.asm["cubin"]), "mma" in result.asm["ptx"], result.metadata.shared)  # noqa: T201 - the test reads it
