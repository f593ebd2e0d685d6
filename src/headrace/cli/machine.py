"""What a machine has for loading data: cores, memory, limits, accelerators, libraries; and what is missing."""

import contextlib
import ctypes
import glob
import importlib.metadata
import os
import platform
import sys
from typing import Any

from headrace import __version__
from headrace.cli.output import Fields, Lines, Part, Table
from headrace.engine.free_memory import available_bytes
from headrace.errors import install_command
from headrace.storage.files import cache_folder
from headrace.threads import num_cores

LIBRARIES = {  # by extra: what it is for, and its packages
    "arrayrecord": ("ArrayRecord", ("array-record",)),
    "bagz": ("Bagz", ("bagz",)),
    "tfrecord": ("TFRecord, faster checksums", ("google-crc32c",)),
    "parquet": ("Parquet, Arrow, CSV", ("pyarrow",)),
    "hf": ("Hugging Face datasets", ("datasets", "huggingface_hub", "pyarrow")),
    "json": ("JSON lines, faster", ("orjson",)),
    "zstd": ("files in zstd", ("zstandard",)),
    "hdf5": ("HDF5", ("h5py",)),
    "zarr": ("Zarr", ("zarr",)),
    "image": ("images", ("simplejpeg", "opencv-python-headless")),
    "audio": ("audio", ("soundfile", "soxr")),
    "video": ("video", ("av",)),
    "text": ("tokenizers", ("tokenizers", "tiktoken", "sentencepiece")),
    "cloud": ("addresses: s3://, gs://, https://", ("fsspec", "s3fs", "gcsfs", "aiohttp")),
    "jax": ("arrays of JAX", ("jax",)),
    "torch": ("tensors of PyTorch", ("torch",)),
    "orbax": ("checkpoints with Orbax", ("orbax-checkpoint",)),
    "ray": ("workers on a Ray cluster", ("ray",)),
    "progress": ("progress bars", ("tqdm",)),
    "prometheus": ("statistics for Prometheus", ("prometheus-client",)),
    "cli": ("colours in the terminal", ("rich",)),
    "view": ("headrace view, reports", ("starlette", "uvicorn", "jinja2")),
}
SAME_MODULE = {"opencv-python-headless": ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")}
FEW_DESCRIPTORS = 1024
LITTLE_BYTES = 1 << 30


def inspect_machine() -> dict[str, Any]:
    """All of it as plain values."""
    found: dict[str, Any] = {
        "headrace": __version__,
        "python": platform.python_version(),
        "numpy": importlib.metadata.version("numpy"),
        "system": platform.platform(),
        "cores": {"usable": num_cores(), "in_machine": os.cpu_count(), "quota": _quota()},
        "memory": {"bytes": _memory_bytes(), "available_bytes": available_bytes()},
        "limits": _limits(),
        "accelerators": _accelerators(),
        "cache": {"folder": cache_folder(), "is_writable": _is_writable(cache_folder())},
        "libraries": [_library(extra, *each) for extra, each in LIBRARIES.items()],
    }
    return found | {"advice": _advice(found)}


def as_parts(found: dict[str, Any]) -> list[Part]:
    """The same for people."""
    cores = found["cores"]
    memory = found["memory"]
    limits = found["limits"]
    usable = f"{cores['usable']} of {cores['in_machine']}"
    pairs = [
        ("headrace", f"{found['headrace']}, Python {found['python']}, NumPy {found['numpy']}"),
        ("system", found["system"]),
        ("cores", usable if cores["quota"] is None else f"{usable}, limited to the CPU time of {cores['quota']:g}"),
        ("memory", f"{_gib(memory['available_bytes'])} available of {_gib(memory['bytes'])}"),
        *((name.replace("_", " "), _limit(limit)) for name, limit in limits.items()),
        ("accelerators", ", ".join(found["accelerators"]) or "none found"),
        ("cache", found["cache"]["folder"] + ("" if found["cache"]["is_writable"] else " (not writable)")),
    ]
    rows = [(each["for"], _versions(each), each["missing"] or "") for each in found["libraries"]]
    parts: list[Part] = [Fields(pairs), Table(("for", "installed", "missing, and how to install it"), rows)]
    return [*parts, Lines(found["advice"], "Advice")] if found["advice"] else parts


def _versions(library: dict[str, Any]) -> str:
    found = [f"{name} {version}" for name, version in library["packages"].items() if version]
    return ", ".join(found) or "no"


def _library(extra: str, purpose: str, packages: tuple[str, ...]) -> dict[str, Any]:
    versions = {name: _version(name) for name in packages}
    missing = [name for name, version in versions.items() if version is None]
    how = f"{', '.join(missing)}: {install_command(extra)}" if missing else None
    return {"for": purpose, "packages": versions, "missing": how}


def _version(package: str) -> str | None:
    for name in (package, *SAME_MODULE.get(package, ())):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


# ------------------------------------------------------------------------------------------ the machine


def _quota() -> float | None:
    """The cores whose time a control group allows this process, where that is a limit."""
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.max") as f:
            quota, period = f.read().split()
        return int(quota) / int(period)  # "max" is no limit
    return None


def _memory_bytes() -> int | None:
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _limits() -> dict[str, dict[str, int | None]]:
    """Limits of the process; `None` is unlimited."""
    try:
        import resource
    except ImportError:  # not on Windows
        return {}
    kinds = {
        "open_files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked_memory_bytes": resource.RLIMIT_MEMLOCK,
        "address_space_bytes": resource.RLIMIT_AS,
    }
    found = {}
    for name, kind in kinds.items():
        soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(kind))
        found[name] = {"now": soft, "at_most": hard}
    with contextlib.suppress(OSError):
        found["open_files"]["in_use"] = len(os.listdir("/proc/self/fd"))
    return found


def _limit(limit: dict[str, int | None]) -> str:
    now, most = ("unlimited" if each is None else f"{each:,}" for each in (limit["now"], limit["at_most"]))
    return now if now == most else f"{now}, can be raised to {most}"


def _accelerators() -> list[str]:
    """Devices that the system shows; no library is asked, since that would take the device."""
    return _cuda_devices() + [
        f"{len(found)} {name}"
        for name, pattern in (("TPU chip(s)", "/dev/accel[0-9]*"), ("AMD GPU driver", "/dev/kfd"))
        if (found := glob.glob(pattern))
    ]


def _cuda_devices() -> list[str]:
    """The names of NVIDIA's devices, as the driver reports them."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return []
        names = []
        for number in range(count.value):
            name = ctypes.create_string_buffer(100)
            device = ctypes.c_int()
            cuda.cuDeviceGet(ctypes.byref(device), number)
            cuda.cuDeviceGetName(name, len(name), device)
            names.append(name.value.decode())
        return names
    except (OSError, AttributeError):
        return []


def _is_writable(folder: str) -> bool:
    """Whether a folder can be written to, or made."""
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK)


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"


def _advice(found: dict[str, Any]) -> list[str]:
    advice = []
    files = found["limits"].get("open_files", {})
    cores = found["cores"]
    if files.get("now") is not None and files["now"] < FEW_DESCRIPTORS:
        advice.append(f"Only {files['now']} files may be open: data in many files needs more. Run `ulimit -n 4096`.")
    if cores["quota"] is not None and cores["quota"] < cores["usable"]:
        advice.append(
            f"This process is limited to the CPU time of {cores['quota']:g} cores: more workers than that "
            "will not help."
        )
    available = found["memory"]["available_bytes"]
    if available is not None and available < LITTLE_BYTES:
        advice.append(f"Only {_gib(available)} of memory is available: use few workers and small buffers.")
    if not found["cache"]["is_writable"]:
        advice.append(
            f"{found['cache']['folder']} is not writable, so indexes are rebuilt and remote files are downloaded each "
            "time. Set HEADRACE_CACHE to another folder."
        )
    if sys.platform == "win32":
        advice.append("There are no worker processes on Windows: `mp_prefetch` uses threads.")
    return advice
