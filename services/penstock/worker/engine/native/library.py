"""Bindings to C++: the structs of forward.cpp, whose fields must have the same order, and its functions."""

from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_void_p

from penstock.worker.engine.native.compiler import load_library


class NativeShape(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("dim", "hidden", "layers", "heads", "kv_heads", "head_size", "vocab_size")),
        ("block_size", c_int32),
        ("norm_eps", c_float),
    ]


class NativeLayerWeights(Structure):
    _fields_ = [
        (name, c_void_p)
        for name in (
            *("attention_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "mlp_norm", "gate_up", "down"),
            *("k", "v"),
        )
    ]


class NativeWeights(Structure):
    _fields_ = [
        ("layers", POINTER(NativeLayerWeights)),
        *((name, c_void_p) for name in ("embedding", "norm", "head", "cos", "sin")),
    ]


class NativePart(Structure):
    _fields_ = [("table", c_void_p), ("start", c_int32), ("count", c_int32)]


class NativeStep(Structure):
    _fields_ = [
        ("tokens", c_void_p),
        ("parts", POINTER(NativePart)),
        ("sampled", c_void_p),
        ("logits", c_void_p),
        ("hidden_rows", c_void_p),
        ("hidden", c_void_p),
        *((name, c_int32) for name in ("rows", "part_count", "samples", "hidden_count")),
    ]


class Library:
    """The functions of the library. The constructor raises NativeUnavailable."""

    def __init__(self) -> None:
        native = load_library()
        self.new = native.penstock_model_new
        self.new.argtypes, self.new.restype = [POINTER(NativeShape), POINTER(NativeWeights), c_int, c_int], c_void_p
        self.forward = native.penstock_model_forward
        self.forward.argtypes, self.forward.restype = [c_void_p, POINTER(NativeStep)], None
        self.free = native.penstock_model_free
        self.free.argtypes, self.free.restype = [c_void_p], None
        self.has_bfloat16 = bool(native.penstock_has_bfloat16())
