"""Second derivatives of functions whose forward pass has already made their gradients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of ``function(*inputs)`` with respect to the needed inputs, with a graph of their own.

    Args:
        function: of the inputs, in torch's differentiable operations.
        inputs: each in its own type.
        needed: of each input, whether its gradient is needed; otherwise that is None.
        grad: of the function's result.
    """
    aliases = [x.view_as(x) for x in inputs]  # an input may depend on another: each gradient is the partial one
    wanted = [alias for alias, is_needed in zip(aliases, needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(function(*aliases), wanted, grad, create_graph=True) if wanted else ())
    return [next(found) if is_needed else None for is_needed in needed]
