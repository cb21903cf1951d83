"""The position-wise feed-forward network, as linear layers and as 1x1 convolutions.

Shapes: B batch, T length, D width (d_model), F inner width (d_ff).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from common.dropout import Dropout
from common.linear import Linear, activated, after

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """Two linear layers with an activation between: (B, T, D) -> (B, T, F) -> (B, T, D) (Vaswani et al. 2017, 3.3)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0, activation: str = "relu") -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)
        _initialise(self.inner, self.outer)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.dropout.p:
            return after(self.outer, self.activation, self.inner(x))
        return self.outer(self.dropout(activated(self.inner, x, self.activation)))


class ConvFeedForward(nn.Module):
    """The same function as two convolutions of kernel 1 over (B, D, T); its weights are those of the linear form with
    a last axis of length 1 (Vaswani et al. 2017, 3.3: "two convolutions with kernel size 1")."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0, activation: str = "relu") -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.inner = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.outer = nn.Conv1d(d_ff, d_model, kernel_size=1)
        _initialise(self.inner, self.outer)

    def forward(self, x: Tensor) -> Tensor:
        # (B, T, D) -> (B, D, T) -> (B, F, T) -> (B, D, T) -> (B, T, D)
        return self.outer(self.dropout(self.activation(self.inner(x.transpose(1, 2))))).transpose(1, 2)


def _initialise(*layers: nn.Linear | nn.Conv1d) -> None:
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)


FEEDFORWARD = {"linear": FeedForward, "conv": ConvFeedForward}
