"""A model's form for inference on a CPU: linear layers whose weights lie as oneDNN's products read them.

Shapes: I features in, O features out.
"""

import copy
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import UserError
from common.kernels.eager import ordinary
from common.kernels.precision import known_precision
from common.kernels.processor import FEW_ROWS, int8_sums_are_exact
from common.linear import Activation, PartialLinear, is_linear

Model = TypeVar("Model", bound=nn.Module)
FUSED = {F.relu: "relu", F.gelu: "gelu"}  # activations that oneDNN applies as it writes a product
APPLIED = {"none": lambda x: x, "relu": torch.relu_, "gelu": F.gelu}  # by the names that oneDNN has for them


class PackedLinear(PartialLinear):
    """A linear layer that cannot be trained, its weights laid out as oneDNN's products read them.

    A general product lays the weights out anew at each call, which takes as long as the product itself when there are
    few rows: in each step of decoding, and for a single picture.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str = "fp32") -> None:
        """weight (O, I), bias (O,); precision of the product: fp32, bf16, or int8 (see ``_Int8``)."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.precision = precision
        self._parts: dict[tuple[int, int], _Product | _Int8] = {}

    def product(self, x: Tensor, first: int, last: int, activation: Activation | None = None) -> Tensor:
        if activation is None or activation in FUSED:
            return self._product(x, first, last, "none" if activation is None else FUSED[activation])
        return activation(self._product(x, first, last, "none"))

    def __getstate__(self) -> dict[str, Any]:
        """Without the products, which are made again at the first call: oneDNN's layout cannot be copied or saved."""
        return {**self.__dict__, "_parts": {}}

    def outputs(self, which: Tensor) -> "PackedLinear":
        """The layer that has these outputs alone, int64 (n,), in their order."""
        bias = None if self.bias is None else self.bias.index_select(0, which)
        return PackedLinear(self.weight.index_select(0, which), bias, self.precision)

    def _product(self, x: Tensor, first: int, last: int, activation: str) -> Tensor:
        if self.precision != "int8" and (not ordinary(x) or (x.requires_grad and torch.is_grad_enabled())):
            return APPLIED[activation](self._by_torch(x, first, last))
        product = self._parts.get((first, last))
        if product is None:
            bias = None if self.bias is None else self.bias[first:last]
            kind = _Int8 if self.precision == "int8" else _Product
            product = self._parts[first, last] = kind(self.weight[first:last], bias, self.precision)
        if not x.numel():
            return x.new_zeros((*x.shape[:-1], last - first))
        return product(x, activation)

    def _by_torch(self, x: Tensor, first: int, last: int) -> Tensor:
        """The same product by operations that can be differentiated, exported and transformed."""
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        bias = None if self.bias is None else self.bias[first:last].to(dtype)
        return F.linear(x.to(dtype), self.weight[first:last].to(dtype), bias).to(x.dtype)


class _Product:
    """x W^T + b in floating point."""

    SMALL = 1 << 18
    """Weights up to which torch's own product is faster for few rows: up to 1.5 times for 64, with AVX2 as with
    AVX-512. It reads its matrix by inputs, with all outputs of an input side by side."""
    FEW = 128
    """Rows up to which it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str) -> None:
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        small = self.dtype is torch.float32 and weight.numel() <= self.SMALL
        self.plain = weight.t().contiguous().t() if small else weight.to(self.dtype)
        self.bias = None if bias is None else bias.to(self.dtype).contiguous()
        self.few = weight.shape[1] * (self.FEW if small else 1)  # numbers of x; oneDNN is slower for one row anyway
        # Without AVX-512, oneDNN refuses to lay out bfloat16 weights, and torch multiplies in its own way.
        self.lays_out = self.dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        if not self.lays_out:
            return
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(self.dtype).contiguous(), None)

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        if not self.lays_out:
            return APPLIED[activation](F.linear(x.to(self.dtype), self.plain, self.bias)).to(x.dtype)
        if self.dtype is not torch.float32 or x.dtype is not torch.float32:
            return self.product(x.to(self.dtype), self.weight, self.bias, activation, [], "none").to(x.dtype)
        if x.numel() <= self.few:
            return APPLIED[activation](F.linear(x, self.plain, self.bias))
        return self.product(x, self.weight, self.bias, activation, [], "none")


class _Int8:
    """x W^T + b in 8-bit integers: one scale for the weights of each output and one for each row of x, found at each
    call ("dynamic quantisation"), so that no row depends on another.

    Sums are exact: on processors that add pairs of products in 16 bits, x has 7 bits instead of 8, and no pair exceeds
    2 * 127 * 127.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str) -> None:
        self.largest = 127 if int8_sums_are_exact() else 63  # of x; oneDNN takes it shifted to 1 and above
        self.scale = weight.abs().amax(dim=1).clamp_min(1e-12) / 127.0
        rounded = (weight / self.scale.unsqueeze(1)).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)
        self.bias = None if bias is None else bias.contiguous()

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True).clamp_min_(1e-12).div_(self.largest)
        zero = self.largest + 1
        rounded = (x / scale).round_().add_(zero).to(torch.uint8)
        weights: tuple[Any, ...] = (self.weight, self.scale, self.zeros, None)
        output: tuple[Any, ...] = (1.0, 0, x.dtype)
        # oneDNN knows one scale for all of x: it is given 1, and rows are scaled afterwards.
        out = torch.ops.onednn.qlinear_pointwise(rounded, 1.0, zero, *weights, *output, "none", [], "none")
        out = out.mul_(scale) if self.bias is None else torch.addcmul(self.bias, out, scale)
        return APPLIED[activation](out)


def packed(model: Model, precision: str = "fp32", rows: int = FEW_ROWS) -> Model:
    """A copy of a model in evaluation mode, for inference on a CPU, whose linear layers are ``PackedLinear``.

    Layers with hooks or a forward of their own stay as they are.
    If torch lacks oneDNN or the model is on another device, it is the model itself.

    Args:
        model: its parameters are float32.
        precision: of the products, and rows: see ``known_precision``.

    Raises:
        UserError: an unknown precision, or one below fp32 that is not available here.
    """
    parameters = list(model.parameters())
    plain = all(p.device.type == "cpu" and type(p) is nn.Parameter and p.dtype == torch.float32 for p in parameters)
    if not (plain and torch.backends.mkldnn.is_available()):
        if precision != "auto" and known_precision(precision) != "fp32":
            raise UserError(f"precision={precision} needs a float32 model on a CPU and torch with oneDNN; use fp32")
        return model
    precision = known_precision(precision, rows)
    if precision == "int8":
        try:
            PackedLinear(torch.ones(1, 1), None, precision)(torch.ones(1, 1))
        except (RuntimeError, AttributeError) as error:  # NotImplementedError is a RuntimeError
            raise UserError(f"precision=int8 is not available on this processor; use fp32 ({error})") from None
    model = copy.deepcopy(model).eval()
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear) and is_linear(layer):
                setattr(module, name, PackedLinear(layer.weight, layer.bias, precision))
    return model
