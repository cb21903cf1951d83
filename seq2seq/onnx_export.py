"""A translator as two ONNX graphs: the encoder, and one step of the decoder with its caches as inputs and outputs.

Shapes: B batch, S source length, T tokens written so far, H heads, K head width, D = H * K width, V target vocabulary.
"""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import DecoderLayer, MultiHeadAttention, padding_mask
from common.positional import sinusoidal_table
from common.training.export import require_onnx, write_graph
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.tokenizer import PAD_ID


class _Embed(nn.Module):
    """Ids to vectors with their positions, from a table of a fixed length: a graph cannot make it longer."""

    table: Tensor

    def __init__(self, model: Seq2Seq, embedding: nn.Embedding, positions: int) -> None:
        super().__init__()
        config, self.embedding = model.config, embedding
        first = int(config.padding_row)  # padding's own row is never seen behind the mask
        table = sinusoidal_table(positions + first, config.layers.d_model, config.layout)[first:]
        self.register_buffer("table", table)
        self.scale = math.sqrt(config.layers.d_model) if config.scale_embedding else 1.0

    def forward(self, ids: Tensor, start: int) -> Tensor:
        """(B, T) -> (B, T, D); the first id stands at position ``start``."""
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        # An index past the table's end is an error, a slice would be short.
        return self.embedding(ids) * self.scale + self.table[positions]


def _heads(attention: MultiHeadAttention, x: Tensor, part: slice) -> Tensor:
    """Some of the rows of the projection in one: (B, T, D) -> (B, H, T, K)."""
    rows = F.linear(x, attention.in_proj.weight[part], attention.in_proj.bias[part])
    return rows.unflatten(2, (attention.n_heads, -1)).transpose(1, 2)


def _keys_and_values(attention: MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    d_model = x.shape[-1]  # keys and values are the last rows, queries the first, whatever the variant
    return _heads(attention, x, slice(-2 * d_model, -d_model)), _heads(attention, x, slice(-d_model, None))


def _attend(attention: MultiHeadAttention, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """One query a sentence (B, 1, D) over keys and values (B, H, T, K) -> (B, 1, D)."""
    out, _ = attention.score(_heads(attention, x, slice(x.shape[-1])), keys, values, mask, 0.0, False)
    return attention.out_proj(out.transpose(1, 2).flatten(2))


class EncoderGraph(nn.Module):
    """Source ids (B, S) -> the key mask (B, S), and each decoder layer's keys and values of the memory."""

    def __init__(self, model: Seq2Seq, positions: int) -> None:
        super().__init__()
        self.embed = _Embed(model, model.source_embedding, positions)
        self.encoder, self.layers = model.encoder, model.decoder.layers

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        """The mask, keys and values of layer 0, keys and values of layer 1, ...; each (B, H, S, K)."""
        mask = padding_mask(source, PAD_ID)
        memory, _ = self.encoder(self.embed(source, 0), key_mask=mask)
        pairs = [_keys_and_values(layer.cross_attention, memory) for layer in _typed(self.layers)]
        return mask, *(one for pair in pairs for one in pair)


class StepGraph(nn.Module):
    """One token a sentence in, the next one's logits out, by way of the caches."""

    def __init__(self, model: Seq2Seq, positions: int) -> None:
        super().__init__()
        self.embed = _Embed(model, model.target_embedding, positions)
        self.layers, self.norm = model.decoder.layers, model.decoder.norm
        self.projection = model.target_embedding if model.projection is None else model.projection

    def forward(
        self, tokens: Tensor, memory_mask: Tensor, memory: tuple[Tensor, ...], past: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The next token of each sentence.

        Args:
            tokens: (B,), the last ones written; the start symbol at first.
            memory_mask: (B, S) bool.
            memory: keys and values of the memory, layer by layer as the encoder graph gives them, (B, H, S, K) each.
            past: those of the tokens before, (B, H, T, K) each, T = 0 at first.

        Returns:
            Logits (B, V), then keys and values with the new token's, (B, H, T + 1, K) each.
        """
        mask = memory_mask[:, None, None, :]
        present: list[Tensor] = []
        x = self.embed(tokens.unsqueeze(1), past[0].shape[2])
        for i, layer in enumerate(_typed(self.layers)):
            pair = slice(2 * i, 2 * i + 2)

            def see_written(y: Tensor, layer: DecoderLayer = layer, pair: slice = pair) -> tuple[Tensor, None]:
                new = _keys_and_values(layer.self_attention, y)
                keys, values = (torch.cat(both, dim=2) for both in zip(past[pair], new, strict=True))
                present.extend((keys, values))
                return _attend(layer.self_attention, y, keys, values, None), None

            def see_memory(y: Tensor, layer: DecoderLayer = layer, pair: slice = pair) -> tuple[Tensor, None]:
                keys, values = memory[pair]
                return _attend(layer.cross_attention, y, keys, values, mask), None

            def feed_forward(y: Tensor, layer: DecoderLayer = layer) -> tuple[Tensor, None]:
                return layer.feedforward(y), None

            x, _ = layer.self_attention_residual(x, see_written)
            x, _ = layer.cross_attention_residual(x, see_memory)
            x, _ = layer.feedforward_residual(x, feed_forward)
        return F.linear(self.norm(x)[:, 0], self.projection.weight), *present


def _typed(layers: nn.ModuleList) -> list[DecoderLayer]:
    return [layer for layer in layers if isinstance(layer, DecoderLayer)]


def tensor_names(kind: str, n_layers: int) -> list[str]:
    """What the graphs call keys and values of ``kind`` memory, past or present: memory_keys_0, memory_values_0, ..."""
    return [f"{kind}_{part}_{i}" for i in range(n_layers) for part in ("keys", "values")]


@torch.no_grad()
def write_onnx(model: Seq2Seq, folder: Path, *, positions: int = 1024) -> None:
    """Writes encoder.onnx and decoder_step.onnx into a folder; batch and lengths may be any.

    Args:
        model: in evaluation mode, on the CPU.
        folder: is there and empty.
        positions: how many the tables have.

    Raises:
        ValueError: the packages that write ONNX files are missing.
    """
    require_onnx()
    config = model.config
    n_layers, layers = config.n_decoder_layers, config.layers
    # Example sizes are neither 0 nor 1, which an export would take for constants.
    source = torch.ones((2, 5), dtype=torch.int64)
    # Every input is a tensor of its own: an export takes one that is given twice for one input.
    memory, past = (
        tuple(torch.zeros((2, layers.n_heads, length, layers.d_model // layers.n_heads)) for _ in range(2 * n_layers))
        for length in (source.shape[1], 3)
    )
    names = {kind: tensor_names(kind, n_layers) for kind in ("memory", "past", "present")}
    batch, source_length, written = (torch.export.Dim(name) for name in ("batch", "source_length", "written"))
    write_graph(
        EncoderGraph(model, positions),
        folder / "encoder.onnx",
        (source,),
        ({0: batch, 1: source_length},),
        ["source"],
        ["memory_mask", *names["memory"]],
    )
    write_graph(
        StepGraph(model, positions),
        folder / "decoder_step.onnx",
        (torch.ones(2, dtype=torch.int64), source > 0, memory, past),
        (
            {0: batch},
            {0: batch, 1: source_length},
            ({0: batch, 2: source_length},) * 2 * n_layers,
            ({0: batch, 2: written},) * 2 * n_layers,
        ),
        ["tokens", "memory_mask", *names["memory"], *names["past"]],
        ["logits", *names["present"]],
    )


def usage(title: str, config: Seq2SeqConfig, longest: int) -> str:
    """What README.txt tells beside the graphs."""
    n_heads, d_head = config.layers.n_heads, config.layers.d_model // config.layers.n_heads
    return f"""{title}, as two ONNX graphs (https://onnx.ai).

encoder.onnx takes source ids, padded with 0 at the end. decoder_step.onnx takes the last tokens, what the encoder gave,
and the keys and values of the tokens before (none at first); it gives the next tokens' logits, and the keys and values
for the next step. An id is that of the tokenizer and one; {config.start_id} is the start, {config.end_id} the end.
A source line has at most {longest} tokens; of a longer one the rest is not translated.

    pip install numpy onnxruntime tokenizers

In this folder, with Python, the likeliest token at each step:

    import sys

    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    encoder = onnxruntime.InferenceSession("encoder.onnx")
    step = onnxruntime.InferenceSession("decoder_step.onnx")
    source = Tokenizer.from_file("source_tokenizer.json")
    target = Tokenizer.from_file("target_tokenizer.json")

    def translate(rows):
        ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
        for padded, row in zip(ids, rows):
            padded[: len(row)] = row
        memory = dict(zip((one.name for one in encoder.get_outputs()), encoder.run(None, {{"source": ids}})))
        nothing = np.zeros((len(ids), {n_heads}, 0, {d_head}), dtype=np.float32)
        past = {{one.name: nothing for one in step.get_inputs() if one.name.startswith("past_")}}
        tokens = np.full(len(ids), {config.start_id}, dtype=np.int64)
        limits = np.array([2 * len(row) + 10 for row in rows])  # tokens, the end not counted
        going = np.full(len(ids), True)
        written = []
        while going.any():
            logits, *present = step.run(None, {{"tokens": tokens, **memory, **past}})
            past = dict(zip(past, present))
            logits[:, [0, {config.start_id}]] = -np.inf
            tokens = logits.argmax(axis=1)
            going &= (tokens != {config.end_id}) & (len(written) < limits)
            written.append(np.where(going, tokens, 0))
        return [[i for i in row if i] for row in np.stack(written, axis=1).tolist()]

    lines = ["ich mochte ein bier"]
    texts = [line.strip() for line in lines]
    rows = [[i + 1 for i in one.ids] for one in source.encode_batch(texts, add_special_tokens=False)]
    for number, row in enumerate(rows, start=1):
        if len(row) > {longest}:
            problem = f"line {{number}} has {{len(row)}} tokens, only the first {longest} are translated"
            print(f"warning: {{problem}}", file=sys.stderr)
            del row[{longest}:]
    found = [[] for _ in rows]  # blank stays blank
    order = sorted((i for i, row in enumerate(rows) if row), key=lambda i: len(rows[i]))
    for first in range(0, len(order), 16):
        some = order[first : first + 16]
        for i, ids in zip(some, translate([rows[i] for i in some])):
            found[i] = ids
    for text in target.decode_batch([[i - 1 for i in row] for row in found], skip_special_tokens=False):
        print(text.replace("\\n", " "))
"""
