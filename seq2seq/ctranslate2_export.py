"""A translator as a CTranslate2 model: the same weights under that library's names.

Greedy decoding writes the same tokens. Beam search has other rules there: the score is divided by length^alpha; when a
hypothesis ends, another takes its place in the beam; one that is cut at the longest length may win; and symbols that
are never written are ruled out before the softmax. With length_penalty=0 and alpha=0 the first is gone, and a trained
model's best translations are the same.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from common import UserError
from common.positional import sinusoidal_table
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.tokenizer import UNKNOWN, Tokenizer
from seq2seq.weights import Translator

# No tokenizer makes a piece with a blank inside, so none is ever taken for a symbol.
PADDING, START, END = "<the padding>", "<the start>", "<the end>"
LARGEST = 64
"""The largest magnitude of a weight stored as int8."""


def require_ctranslate2() -> None:
    """Raises ValueError where the package ctranslate2 is not installed."""
    try:
        import ctranslate2  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "--to ctranslate2 needs ctranslate2, the extra ctranslate2: pip install 'patchwords[ctranslate2]'"
        ) from None


def check_supported(config: Seq2SeqConfig) -> None:
    """Raises ValueError at a model that CTranslate2's Transformer cannot compute, naming the setting."""
    layers = config.layers
    for name, value, needed in (
        ("attention", layers.attention, "scaled_dot_product"),
        ("unbiased_norm", layers.unbiased_norm, False),
    ):
        if value != needed:
            raise UserError(f"CTranslate2 knows {name}={needed} only, this model has {name}={value}; use --to onnx")


def write_ctranslate2(
    translator: Translator, folder: Path, *, quantization: str = "float32", positions: int = 1024
) -> None:
    """Writes model.bin, config.json and the vocabularies into a folder.

    Args:
        translator: its tokenizers name the entries of the vocabularies.
        folder: is there and empty.
        quantization: float32, float16 or int8, the type that weights are stored in.
        positions: how many the table has; CTranslate2 refuses a longer sentence.

    Raises:
        ValueError: a model that CTranslate2 cannot compute, or the package is missing.
    """
    require_ctranslate2()
    from ctranslate2.specs import common_spec, model_spec, transformer_spec  # pyright: ignore[reportMissingImports]

    model, source, target, _ = translator
    assert isinstance(model, Seq2Seq)
    config, layers = model.config, model.config.layers
    check_supported(config)
    spec = transformer_spec.TransformerSpec.from_config(
        (config.n_encoder_layers, config.n_decoder_layers),
        layers.n_heads,
        pre_norm=layers.norm_first,
        activation=common_spec.Activation[layers.activation.upper()],
    )
    for name, value in _variables(model, positions):
        scope, _, attribute = name.rpartition("/")
        # A copy: quantisation works in place. Layers that lack what is set would complain.
        setattr(model_spec.index_spec(spec, scope), attribute, value.detach().cpu().float().numpy().copy())
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = config.scale_embedding
    settings: Any = spec.config
    settings.layer_norm_epsilon = layers.norm_eps
    settings.decoder_start_token = settings.bos_token = START
    settings.eos_token = END
    settings.unk_token = UNKNOWN if source.unknown_id is not None else PADDING  # must be a name in the vocabulary
    spec.register_source_vocabulary(vocabulary(source))
    spec.register_target_vocabulary(vocabulary(target))
    spec.validate()
    spec.optimize(quantization="float32" if quantization == "int8" else quantization)
    if quantization == "int8":
        model_spec.visit_spec(spec, _round_to_seven_bits)
    spec.save(str(folder))


def _round_to_seven_bits(spec: Any, name: str, value: Any) -> None:
    """Turns a matrix that CTranslate2 stores as int8 into bytes from -LARGEST to LARGEST, with a scale for each row.

    Its own conversion uses -127 to 127, but x86 processors without VNNI add two products of an unsigned and a signed
    byte in 16 bits and saturate there; 2 * 255 * 64 fits.
    """
    from ctranslate2.specs.model_spec import NumpyVariable  # pyright: ignore[reportMissingImports]

    attribute = name.rpartition("/")[2]
    if isinstance(value, str) or not hasattr(spec, f"{attribute}_scale"):
        return  # the name of an equal matrix, or no matrix
    weight = value.numpy()
    scale = (LARGEST / np.maximum(np.abs(weight).max(axis=1), 1e-30)).astype(np.float32)
    setattr(spec, attribute, NumpyVariable(np.rint(weight * scale[:, None]).astype(np.int8)))
    setattr(spec, f"{attribute}_scale", NumpyVariable(scale))


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """The name of each id, all different: the tokenizer's pieces and the symbols."""
    size = tokenizer.library.get_vocab_size()
    pieces = [str(tokenizer.library.id_to_token(i)) for i in range(size)]
    return [PADDING, *pieces, *([START, END] if tokenizer.symbols else [])]


def usage(title: str, quantization: str, longest: int) -> str:
    """What README.txt tells beside the model."""
    return f"""{title}, for CTranslate2 (https://opennmt.net/CTranslate2).

    pip install ctranslate2 tokenizers

In this folder, with Python:

    import sys

    import ctranslate2
    from tokenizers import Tokenizer

    translator = ctranslate2.Translator(".")
    source = Tokenizer.from_file("source_tokenizer.json")
    target = Tokenizer.from_file("target_tokenizer.json")

    lines = ["ich mochte ein bier"]
    tokens = [one.tokens for one in source.encode_batch([line.strip() for line in lines], add_special_tokens=False)]
    for number, row in enumerate(tokens, start=1):
        if len(row) > {longest}:
            problem = f"line {{number}} has {{len(row)}} tokens, only the first {longest} are translated"
            print(f"warning: {{problem}}", file=sys.stderr)
            del row[{longest}:]
    limit = 2 * max(map(len, tokens)) + 10  # tokens, the end not counted
    results = translator.translate_batch(
        [row for row in tokens if row],
        beam_size=4,
        min_decoding_length=0,
        max_decoding_length=limit + 1,
        max_input_length=0,
        max_batch_size=4096,
        batch_type="tokens",
        suppress_sequences=[["{PADDING}"], ["{START}"]],
    )
    best = iter(result.hypotheses[0][:limit] for result in results)
    found = [[target.token_to_id(token) for token in next(best)] if row else [] for row in tokens]  # blank stays blank
    for text in target.decode_batch(found, skip_special_tokens=False):
        print(text.replace("\\n", " "))

A source line has at most {longest} tokens; of a longer one the rest is not translated.

Weights are stored as {quantization}; the argument compute_type of Translator chooses the type to compute in. On x86
processors without VNNI use compute_type="int8" only if the weights are stored as int8: weights that CTranslate2 itself
turns into int8 overflow.

The score of a hypothesis is divided by its length ** length_penalty, 1 if not given. The program that wrote this folder
has another rule, --alpha: with length_penalty=0 here and --alpha 0 there both write the same translations.
"""


def _variables(model: Seq2Seq, positions: int) -> Iterator[tuple[str, Tensor]]:
    """(CTranslate2's name, values) of every weight."""
    config, state = model.config, model.state_dict()
    d_model = config.layers.d_model
    # Where row 0 belongs to padding, real tokens begin at row 1; padding's own row is never seen behind the mask.
    table = sinusoidal_table(positions + config.padding_row, d_model, config.layout)[int(config.padding_row) :]
    yield "encoder/position_encodings/encodings", table
    yield "decoder/position_encodings/encodings", table
    yield "encoder/embeddings_0/weight", model.source_embedding.weight
    yield "decoder/embeddings/weight", model.target_embedding.weight
    yield "decoder/projection/weight", (model.target_embedding if model.projection is None else model.projection).weight

    def linear(theirs: str, ours: str, rows: slice = slice(None)) -> Iterator[tuple[str, Tensor]]:
        weight = state[f"{ours}.weight"]
        yield f"{theirs}/weight", weight.flatten(1)[rows]  # a convolution's last axis has length 1
        yield f"{theirs}/bias", state[f"{ours}.bias"][rows]

    def norm(theirs: str, ours: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{theirs}/layer_norm/gamma", state[f"{ours}.weight"]
        yield f"{theirs}/layer_norm/beta", state[f"{ours}.bias"]

    for side, n_layers in (("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)):
        if config.layers.norm_first:
            yield from norm(side, f"{side}.norm")
        for i in range(n_layers):
            theirs, ours = f"{side}/layer_{i}", f"{side}.layers.{i}"
            yield from norm(f"{theirs}/self_attention", f"{ours}.self_attention_residual.norm")
            yield from linear(f"{theirs}/self_attention/linear_0", f"{ours}.self_attention.in_proj")
            yield from linear(f"{theirs}/self_attention/linear_1", f"{ours}.self_attention.out_proj")
            yield from norm(f"{theirs}/ffn", f"{ours}.feedforward_residual.norm")
            yield from linear(f"{theirs}/ffn/linear_0", f"{ours}.feedforward.inner")
            yield from linear(f"{theirs}/ffn/linear_1", f"{ours}.feedforward.outer")
            if side == "decoder":
                yield from norm(f"{theirs}/attention", f"{ours}.cross_attention_residual.norm")
                in_proj = f"{ours}.cross_attention.in_proj"  # rows [queries; keys; values]
                yield from linear(f"{theirs}/attention/linear_0", in_proj, slice(d_model))
                yield from linear(f"{theirs}/attention/linear_1", in_proj, slice(d_model, None))
                yield from linear(f"{theirs}/attention/linear_2", f"{ours}.cross_attention.out_proj")
