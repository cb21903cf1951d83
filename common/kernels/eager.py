"""Where a kernel of ours may stand in for torch's function: ordinary tensors in ordinary eager execution."""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

ORDINARY = (Tensor, nn.Parameter)


def eager(*tensors: Tensor | None) -> bool:
    """Whether nothing but autograd watches operations on these tensors.

    False where ``ordinary`` is, and under modes that intercept operations (FLOP counters, fake tensors): they know
    torch's own functions only.
    """
    if not ordinary(*tensors):  # first: a compiler cannot trace the stacks of modes
        return False
    return not (torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def ordinary(*tensors: Tensor | None) -> bool:
    """Whether these tensors hold numbers that are computed now.

    False while compiling, exporting or tracing, inside ``torch.func`` transforms and forward-mode differentiation, and
    for subclasses and sparse tensors. Ask before any size, since an export would fix the answer for that size.
    """
    if torch.compiler.is_compiling() or transformed() or torch._C._get_tracing_state():
        return False
    for x in tensors:  # a generator takes longer than the checks
        if x is not None and (type(x) not in ORDINARY or x.layout is not torch.strided or _batched(x)):
            return False
    return True


_batched = torch._C._functorch.is_legacy_batchedtensor  # pyright: ignore[reportAttributeAccessIssue]; as gradients are with is_grads_batched=True


def transformed() -> bool:
    """Whether a ``torch.func`` transform (grad, vmap, jvp, ...) or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
