"""Dropout with a cheap mask on the CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.kernels.eager import eager


def dropout(x: Tensor, p: float) -> Tensor:
    """Sets each number of x to 0 with probability p and scales the others by 1 / (1 - p), any shape (Srivastava et al.
    2014).

    On a CPU torch draws one Bernoulli number after the other, which takes longer than the layer before it. Here one
    64-bit draw of torch's generator makes four masks; p is rounded to a multiple of 2^-16, and the scale follows it.
    Compiled models and ``torch.func`` transforms draw as torch does.
    """
    dropped = round(p * 65536)  # of the 65536 values that 16 bits take
    if not eager(x) or x.device.type != "cpu" or not 0 <= dropped < 65536:
        return F.dropout(x, p)
    n = x.numel()
    bits = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:n]
    mask = (bits >= dropped - 32768).to(x.dtype).mul_(65536 / (65536 - dropped))
    return x * mask.view(x.shape)


class Dropout(nn.Dropout):
    """``dropout`` while training, nothing in evaluation mode."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p > 0.0 else input
