"""Layer normalisation, the standard form and the one with the unbiased standard deviation.

Each position is normalised over its own width D, so that nothing depends on the batch or on other positions: that is
the difference from batch normalisation, which takes its statistics over the batch and keeps running averages.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import UserError


class LayerNorm(nn.Module):
    """Normalises the last axis, then gain and bias: (..., D) -> (..., D) (Ba et al. 2016).

    Standard: ``weight * (x - mean) / sqrt(var + eps) + bias`` with the biased variance.
    Unbiased: ``weight * (x - mean) / (std + eps) + bias`` with the standard deviation over D - 1.

    Raises:
        ValueError: the unbiased form of a single number, whose deviation is 0 / 0.
    """

    def __init__(self, d_model: int, eps: float = 1e-5, unbiased: bool = False) -> None:
        super().__init__()
        if unbiased and d_model < 2:
            raise UserError(f"an unbiased deviation needs d_model of 2 or more; got {d_model}; use unbiased=False")
        self.eps = eps
        self.unbiased = unbiased
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        if not self.unbiased:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        if x.dtype in (torch.float16, torch.bfloat16):  # the squares overflow in half precision
            return self.forward(x.float()).to(x.dtype)
        centred = x - x.mean(dim=-1, keepdim=True)
        centred = centred - centred.mean(dim=-1, keepdim=True)  # what rounding the mean left; eps would not hide it
        variance = centred.square().sum(dim=-1, keepdim=True) / (x.shape[-1] - 1)
        # The square root has an infinite slope at 0: a constant row takes another branch and keeps a finite gradient.
        constant = variance == 0
        std = variance.masked_fill(constant, 1.0).sqrt().masked_fill(constant, 0.0)
        return self.weight * centred / (std + self.eps) + self.bias

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, unbiased={self.unbiased}"
