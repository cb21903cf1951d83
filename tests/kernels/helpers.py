"""Every way to differentiate or run a function, for comparing a kernel with torch's own function."""

from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor
from torch.autograd import forward_ad

Function = Callable[..., Tensor]


def agree(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def first_and_second_derivatives(f: Function, inputs: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    """Value, gradients and gradients of a gradient penalty with respect to the needed inputs and the penalty's own."""
    own = [x.detach().clone().requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]
    wanted = [x for x in own if x.requires_grad]
    out = f(*own)
    torch.manual_seed(11)
    weights = torch.randn_like(out).requires_grad_()
    first = torch.autograd.grad(out, wanted, weights, create_graph=True)
    plain = torch.autograd.grad(f(*own), wanted, weights.detach())
    agree(first, plain)
    penalty = torch.stack([(grad.square().sum() + grad.sum()) for grad in first]).sum()
    second = torch.autograd.grad(penalty, [*wanted, weights], allow_unused=True, materialize_grads=True)
    return [out.detach(), *plain, *second]


def compare_derivatives(ours: Function, theirs: Function, inputs: Sequence[Tensor]) -> None:
    """For each choice of inputs that need gradients."""
    for needed in product((True, False), repeat=len(inputs)):
        if any(needed):
            found = first_and_second_derivatives(ours, inputs, needed)
            agree(found, first_and_second_derivatives(theirs, inputs, needed))


def compare_transforms(ours: Function, theirs: Function, inputs: Sequence[Tensor]) -> None:
    """``torch.func``'s grad, vmap, jvp and Hessian-vector product, forward-mode AD, and batched gradients."""
    inputs = [x.detach() for x in inputs]
    tangents = tuple(torch.linspace(-1.0, 1.0, x.numel()).view_as(x) for x in inputs)
    numbers = tuple(range(len(inputs)))

    def results(f: Function) -> list[object]:
        def scalar(*args: Tensor) -> Tensor:
            return f(*args).square().sum()

        def hvp(*args: Tensor) -> object:
            return torch.func.jvp(torch.func.grad(scalar, numbers), args, tangents)

        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
            forward = forward_ad.unpack_dual(f(*duals)).tangent
        own = [x.clone().requires_grad_() for x in inputs]
        out = f(*own)
        batched = torch.autograd.grad(out, own, torch.stack((out.detach(), 2 * out.detach())), is_grads_batched=True)
        twice = [torch.stack((x, -x)) for x in inputs]
        return [
            torch.func.grad(scalar, numbers)(*inputs),
            torch.func.vmap(f)(*twice),
            torch.func.vmap(torch.func.grad(scalar, numbers))(*twice),
            torch.func.jvp(f, tuple(inputs), tangents),
            hvp(*inputs),
            forward,
            batched,
        ]

    for found, expected in zip(results(ours), results(theirs), strict=True):
        agree(found, expected)
