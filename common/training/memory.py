"""How a process uses memory on a CPU: what it has freed stays with it, and it keeps few kernels."""

import ctypes
import os
import sys

# Numbers of glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
AHEAD = 256 * 2**20  # bytes asked for at once
NEVER = 2**31 - 1
KERNELS = 256  # several times what the layers of one step need


def tune_memory() -> None:
    """Both of the below; before the first product, for oneDNN reads its settings then."""
    keep_freed_memory()
    keep_few_kernels()


def keep_few_kernels() -> None:
    """Tells oneDNN to keep the ``KERNELS`` it used last, unless the environment says how many.

    It makes a kernel for each shape of a product, of half a megabyte and more, and two caches keep 1,024 each. Where
    batches have many shapes, as a translator's do, they filled gigabytes, and few were met again before they had left.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS))


def keep_freed_memory() -> bool:
    """Tells the C library to give no freed memory back to the system while the process lives.

    A training step on a CPU makes and frees the same tensors of some megabytes again and again. By default glibc
    returns much of that at once, and the system clears the pages anew: 3 to 8 % of a ViT's step in float32, nothing in
    bfloat16. The peak rises by up to a tenth, for a piece that is too small for the next tensor is kept too.

    Returns:
        Whether the C library could be told: it is glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: NEVER, M_TOP_PAD: AHEAD}
    return all([mallopt(name, value) == 1 for name, value in settings.items()])
