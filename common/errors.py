"""Errors that are no bugs: a user's mistake, and a machine that is too small."""

import errno
import unicodedata

import torch


class UserError(ValueError):
    """A mistake of the caller: one line that names the value and the cure.

    The commands print it after ``error:`` and exit with code 2; library users see an ordinary ``ValueError``.
    """


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on the machine or on its GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch's allocators for the CPU (Linux and macOS, Windows) and for MPS raise the bare class.
    texts = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def one_line(text: str) -> str:
    """The text with line ends and other control characters, which a file's name may contain, as Python writes them."""
    control = ("Cc", "Cs", "Zl", "Zp")
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in control else c for c in text)
