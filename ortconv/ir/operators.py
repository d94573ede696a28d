"""Facts about operators, called traits: one row per operator.

Every operator of ONNX has a row, and so has every operator of ONNX Runtime that has a kernel. Those for which no trait holds are
listed at the end. Kernels, support rules and lowerings are not traits; they are in tables of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

from ortconv.ir.graph import Node


class Trait(Enum):
    """A property of an operator that holds for all values of its attributes."""

    __hash__ = object.__hash__  # members are unique, and Enum's own hash takes several times as long

    ELEMENTWISE = auto()
    """Each output element depends on the element of input 0 at the same position; other inputs apply to all elements."""
    BROADCASTS = auto()
    """Each output element depends on the elements of all inputs, broadcast, at the same position."""
    COMMUTATIVE = auto()
    """Swapping the two inputs does not change a bit of the result. Not Max and Min: of +0 and -0 they may return either."""
    REDUCES = auto()
    """Combines all elements along axes, which are an attribute or input 1."""
    MOVES = auto()
    """The outputs consist of elements of input 0, selected by position."""
    ORDERED = auto()
    """Like MOVES, and the output has all elements of input 0 in the same order."""
    JOINS = auto()
    """The output consists of the elements of all inputs."""
    PICKS = auto()
    """The first output consists of elements of input 0, selected by value, unless there are none to select from."""
    VIEW = auto()
    """numpy returns the outputs as views of input 0."""
    KEEPS_SHAPE = auto()
    """The first output has the shape of input 0. True for every ELEMENTWISE operator, too."""
    NONNEGATIVE = auto()
    """No element of the output is below zero."""
    SUMS = auto()
    """Sums products with the elements of input 1."""
    GROWS = auto()
    """The output may be much larger than the inputs."""
    RANDOM = auto()
    """Draws random numbers."""
    SHAPED_BY_DATA = auto()
    """The output shapes depend on values other than those of the `shaped_by` inputs, or the outputs are sequences or optionals."""
    QDQ = auto()
    """ONNX Runtime computes it in integers between DequantizeLinear nodes before it and QuantizeLinear nodes after it."""
    DQ = auto()
    """ONNX Runtime computes it in integers after DequantizeLinear nodes, with or without QuantizeLinear nodes after it."""


class Traits(NamedTuple):
    """The facts about one operator."""

    flags: frozenset[Trait]
    shaped_by: tuple[int, ...] = ()
    """The inputs whose values, and not only shapes, determine the output shapes."""
    random_if: int | None = None
    """The input that, if true, makes the operator draw random numbers."""
    quantized: int = 0
    """The number of inputs that a scale and a zero point follow; behind them are those of the output."""

    def has(self, *any_of: Trait) -> bool:
        return not self.flags.isdisjoint(any_of)


MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

ML = "ai.onnx.ml"
"""The domain of ONNX's operators for classical machine learning."""

INT8 = 4
"""The accuracy level of MatMulNBits that quantizes activations to 8 bits."""

_TABLE: dict[tuple[str, str], Traits] = {}
_UNKNOWN = Traits(frozenset({Trait.SHAPED_BY_DATA}))


def traits(node: Node) -> Traits:
    """The facts about a node's operator. An operator without a row has only the trait SHAPED_BY_DATA."""
    return _TABLE.get((node.domain, node.op), _UNKNOWN)


def named(*any_of: Trait, domain: str = "", but: Collection[str] = ()) -> tuple[str, ...]:
    """The operators of a domain with one of the traits, except those of `but`, which must have one, too."""
    found = [op for (d, op), row in _TABLE.items() if d == domain and row.has(*any_of)]
    assert set(but) <= set(found), f"exceptions without the trait: {sorted(set(but) - set(found))}"
    return tuple(op for op in found if op not in but)


def operators(domain: str = "") -> tuple[str, ...]:
    """The operators of a domain that have a row."""
    return tuple(op for d, op in _TABLE if d == domain)


def finds_values_by_name(node: Node) -> bool:
    """True if the node refers to inputs and outputs of its subgraphs by their names, as BeamSearch does."""
    return node.domain == MICROSOFT


def operator(
    op: str,
    *flags: Trait,
    domain: str = "",
    shaped_by: tuple[int, ...] = (),
    random_if: int | None = None,
    quantized: int = 0,
) -> None:
    """Add a row to the table."""
    _TABLE[domain, op] = Traits(frozenset(flags), shaped_by, random_if, quantized)


(ELEMENTWISE, BROADCASTS, COMMUTATIVE, REDUCES, MOVES, ORDERED, JOINS, PICKS, VIEW, KEEPS_SHAPE, NONNEGATIVE, SUMS, GROWS,
 RANDOM, SHAPED_BY_DATA, QDQ, DQ) = Trait  # fmt: skip

operator("Abs", ELEMENTWISE, NONNEGATIVE, QDQ)
operator("Acos", ELEMENTWISE)
operator("Acosh", ELEMENTWISE)
operator("Add", BROADCASTS, COMMUTATIVE, QDQ)
operator("Affine", ELEMENTWISE)
operator("AffineGrid", GROWS, shaped_by=(1,))
operator("And", BROADCASTS, COMMUTATIVE)
operator("ArgMax", DQ)
operator("ArgMin", DQ)
operator("Asin", ELEMENTWISE, QDQ)
operator("Asinh", ELEMENTWISE)
operator("Atan", ELEMENTWISE, QDQ)
operator("Atanh", ELEMENTWISE)
operator("Attention", SUMS)
operator("AveragePool", QDQ)
operator("BatchNormalization", KEEPS_SHAPE, QDQ)
operator("Bernoulli", KEEPS_SHAPE, RANDOM)
operator("BitCast", ELEMENTWISE)
operator("BitShift", BROADCASTS)
operator("BitwiseAnd", BROADCASTS, COMMUTATIVE)
operator("BitwiseNot", ELEMENTWISE)
operator("BitwiseOr", BROADCASTS, COMMUTATIVE)
operator("BitwiseXor", BROADCASTS, COMMUTATIVE)
operator("BlackmanWindow", GROWS, shaped_by=(0,))
operator("Cast", ELEMENTWISE)
operator("CastLike", ELEMENTWISE)
operator("CausalConvWithState", SUMS)
operator("Ceil", ELEMENTWISE, QDQ)
operator("Celu", ELEMENTWISE)
operator("CenterCropPad", GROWS, shaped_by=(1,))
operator("Clip", ELEMENTWISE, QDQ)
operator("Col2Im", GROWS, shaped_by=(1, 2))
operator("Compress", MOVES, SHAPED_BY_DATA)
operator("Concat", JOINS, QDQ)
operator("ConcatFromSequence", SHAPED_BY_DATA)
operator("ConstantOfShape", GROWS, shaped_by=(0,))
operator("Conv", SUMS, QDQ)
operator("ConvTranspose", SUMS, QDQ)
operator("Cos", ELEMENTWISE, QDQ)
operator("Cosh", ELEMENTWISE)
operator("CumProd", KEEPS_SHAPE)
operator("CumSum", KEEPS_SHAPE, QDQ)
operator("DFT", GROWS, shaped_by=(1, 2))
operator("DeformConv", SUMS)
operator("DepthToSpace", MOVES, QDQ)
operator("DequantizeLinear", KEEPS_SHAPE)
operator("Div", BROADCASTS, QDQ)
operator("Dropout", VIEW, KEEPS_SHAPE, random_if=2)
operator("DynamicQuantizeLinear", KEEPS_SHAPE)
operator("DynamicSlice", shaped_by=(1, 2, 3))
operator("Einsum", SUMS, QDQ)
operator("Elu", ELEMENTWISE, QDQ)
operator("Equal", BROADCASTS, COMMUTATIVE, DQ)
operator("Erf", ELEMENTWISE)
operator("Exp", ELEMENTWISE, NONNEGATIVE, QDQ)
operator("Expand", MOVES, VIEW, GROWS, QDQ, shaped_by=(1,))
operator("EyeLike", KEEPS_SHAPE, GROWS)
operator("Flatten", MOVES, ORDERED, VIEW, QDQ)
operator("Floor", ELEMENTWISE, QDQ)
operator("GRU", SUMS)
operator("Gather", MOVES, QDQ)
operator("GatherElements", MOVES, QDQ)
operator("GatherND", MOVES)
operator("Gelu", ELEMENTWISE, QDQ)
operator("Gemm", SUMS, DQ)
operator("GlobalAveragePool", QDQ)
operator("GlobalMaxPool", PICKS, QDQ)
operator("Greater", BROADCASTS, DQ)
operator("GreaterOrEqual", BROADCASTS, DQ)
operator("GridSample", QDQ)
operator("GroupNormalization", KEEPS_SHAPE)
operator("HammingWindow", GROWS, shaped_by=(0,))
operator("HannWindow", GROWS, shaped_by=(0,))
operator("HardSigmoid", ELEMENTWISE, NONNEGATIVE, QDQ)
operator("HardSwish", ELEMENTWISE, QDQ)
operator("Hardmax", KEEPS_SHAPE, NONNEGATIVE)
operator("Identity", ELEMENTWISE, MOVES, ORDERED, VIEW)
operator("If", SHAPED_BY_DATA)
operator("ImageDecoder", SHAPED_BY_DATA)
operator("ImageScaler", KEEPS_SHAPE)
operator("InstanceNormalization", KEEPS_SHAPE, QDQ)
operator("IsInf", ELEMENTWISE)
operator("IsNaN", ELEMENTWISE)
operator("LRN", KEEPS_SHAPE, QDQ)
operator("LSTM", SUMS)
operator("LayerNormalization", KEEPS_SHAPE, QDQ)
operator("LeakyRelu", ELEMENTWISE, QDQ)
operator("Less", BROADCASTS, DQ)
operator("LessOrEqual", BROADCASTS, DQ)
operator("LinearAttention", SUMS)
operator("Log", ELEMENTWISE, QDQ)
operator("LogSoftmax", KEEPS_SHAPE, QDQ)
operator("Loop", SHAPED_BY_DATA)
operator("LpNormalization", KEEPS_SHAPE, QDQ)
operator("MatMul", SUMS, DQ)
operator("Max", BROADCASTS, QDQ)
operator("MaxPool", PICKS, QDQ)
operator("MaxRoiPool", PICKS)
operator("MaxUnpool", GROWS, shaped_by=(2,))
operator("Mean", BROADCASTS, COMMUTATIVE)
operator("MeanVarianceNormalization", KEEPS_SHAPE)
operator("MelWeightMatrix", GROWS, shaped_by=(0, 1, 2, 3, 4))
operator("Min", BROADCASTS, QDQ)
operator("Mish", ELEMENTWISE)
operator("Mod", BROADCASTS)
operator("Mul", BROADCASTS, COMMUTATIVE, QDQ)
operator("Multinomial", RANDOM)
operator("Neg", ELEMENTWISE, QDQ)
operator("NonMaxSuppression", SHAPED_BY_DATA)
operator("NonZero", SHAPED_BY_DATA)
operator("Not", ELEMENTWISE)
operator("OneHot", GROWS, shaped_by=(1,))
operator("Optional", SHAPED_BY_DATA)
operator("OptionalGetElement", SHAPED_BY_DATA)
operator("OptionalHasElement", SHAPED_BY_DATA)
operator("Or", BROADCASTS, COMMUTATIVE)
operator("PRelu", BROADCASTS, KEEPS_SHAPE, QDQ)
operator("Pad", GROWS, QDQ, shaped_by=(1, 3))
operator("ParametricSoftplus", ELEMENTWISE)
operator("Pow", BROADCASTS, QDQ)
operator("QLinearConv", quantized=2)
operator("QLinearMatMul", quantized=2)
operator("QuantizeLinear", KEEPS_SHAPE)
operator("RMSNormalization", KEEPS_SHAPE, QDQ)
operator("RNN", SUMS)
operator("RandomNormal", RANDOM)
operator("RandomNormalLike", KEEPS_SHAPE, RANDOM)
operator("RandomUniform", RANDOM)
operator("RandomUniformLike", KEEPS_SHAPE, RANDOM)
operator("Range", GROWS, shaped_by=(0, 1, 2))
operator("Reciprocal", ELEMENTWISE, QDQ)
operator("ReduceL1", REDUCES, shaped_by=(1,))
operator("ReduceL2", REDUCES, shaped_by=(1,))
operator("ReduceLogSum", REDUCES, shaped_by=(1,))
operator("ReduceLogSumExp", REDUCES, shaped_by=(1,))
operator("ReduceMax", REDUCES, PICKS, QDQ, shaped_by=(1,))
operator("ReduceMean", REDUCES, QDQ, shaped_by=(1,))
operator("ReduceMin", REDUCES, PICKS, QDQ, shaped_by=(1,))
operator("ReduceProd", REDUCES, QDQ, shaped_by=(1,))
operator("ReduceSum", REDUCES, QDQ, shaped_by=(1,))
operator("ReduceSumSquare", REDUCES, shaped_by=(1,))
operator("RegexFullMatch", ELEMENTWISE)
operator("Relu", ELEMENTWISE, NONNEGATIVE, QDQ)
operator("Reshape", MOVES, ORDERED, VIEW, QDQ, shaped_by=(1,))
operator("Resize", GROWS, QDQ, shaped_by=(1, 2, 3))
operator("ReverseSequence", MOVES, KEEPS_SHAPE)
operator("RotaryEmbedding", KEEPS_SHAPE)
operator("Round", ELEMENTWISE, QDQ)
operator("STFT", GROWS, shaped_by=(1, 2, 3))
operator("Scale", ELEMENTWISE)
operator("ScaledTanh", ELEMENTWISE)
operator("Scan", SHAPED_BY_DATA)
operator("Scatter", KEEPS_SHAPE)
operator("ScatterElements", KEEPS_SHAPE, QDQ)
operator("ScatterND", KEEPS_SHAPE)
operator("Selu", ELEMENTWISE)
operator("SequenceAt", SHAPED_BY_DATA)
operator("SequenceConstruct", SHAPED_BY_DATA)
operator("SequenceEmpty", SHAPED_BY_DATA)
operator("SequenceErase", SHAPED_BY_DATA)
operator("SequenceInsert", SHAPED_BY_DATA)
operator("SequenceLength", SHAPED_BY_DATA)
operator("SequenceMap", SHAPED_BY_DATA)
operator("Shrink", ELEMENTWISE)
operator("Sigmoid", ELEMENTWISE, NONNEGATIVE, QDQ)
operator("Sign", ELEMENTWISE, QDQ)
operator("SimplifiedLayerNormalization", KEEPS_SHAPE)
operator("Sin", ELEMENTWISE, QDQ)
operator("Sinh", ELEMENTWISE)
operator("Slice", MOVES, VIEW, QDQ, shaped_by=(1, 2, 3, 4))
operator("Softmax", KEEPS_SHAPE, NONNEGATIVE, QDQ)
operator("Softplus", ELEMENTWISE, NONNEGATIVE)
operator("Softsign", ELEMENTWISE)
operator("SpaceToDepth", MOVES, QDQ)
operator("Split", MOVES, VIEW, QDQ, shaped_by=(1,))
operator("SplitToSequence", SHAPED_BY_DATA)
operator("Sqrt", ELEMENTWISE, NONNEGATIVE, QDQ)
operator("Squeeze", MOVES, ORDERED, VIEW, QDQ, shaped_by=(1,))
operator("StringConcat", BROADCASTS)
operator("StringNormalizer", SHAPED_BY_DATA)
operator("StringSplit", SHAPED_BY_DATA)
operator("Sub", BROADCASTS, QDQ)
operator("Sum", BROADCASTS, COMMUTATIVE)
operator("Swish", ELEMENTWISE)
operator("Tan", ELEMENTWISE)
operator("Tanh", ELEMENTWISE, QDQ)
operator("TensorScatter", KEEPS_SHAPE)
operator("ThresholdedRelu", ELEMENTWISE)
operator("Tile", MOVES, GROWS, QDQ, shaped_by=(1, 2))
operator("TopK", PICKS, QDQ, shaped_by=(1,))
operator("Transpose", MOVES, VIEW, QDQ)
operator("Trilu", KEEPS_SHAPE)
operator("Unique", PICKS, SHAPED_BY_DATA)
operator("Unsqueeze", MOVES, ORDERED, VIEW, QDQ, shaped_by=(1,))
operator("Upsample", GROWS, shaped_by=(1,))
operator("Where", BROADCASTS, QDQ)
operator("Xor", BROADCASTS, COMMUTATIVE)

operator("Attention", SUMS, domain=MICROSOFT)
operator("BiasDropout", random_if=4, domain=MICROSOFT)
operator("BiasGelu", BROADCASTS, domain=MICROSOFT)
operator("BitmaskBiasDropout", random_if=4, domain=MICROSOFT)
operator("BitmaskDropout", random_if=2, domain=MICROSOFT)
operator("CausalConvWithState", SUMS, domain=MICROSOFT)
operator("ConvTransposeWithDynamicPads", SUMS, shaped_by=(2,), domain=MICROSOFT)
operator("DecoderMaskedMultiHeadAttention", SUMS, shaped_by=(7,), domain=MICROSOFT)
operator("DequantizeLinear", KEEPS_SHAPE, domain=MICROSOFT)
operator("ExpandDims", MOVES, ORDERED, VIEW, shaped_by=(1,), domain=MICROSOFT)
operator("FastGelu", BROADCASTS, domain=MICROSOFT)
operator("FusedConv", SUMS, domain=MICROSOFT)
operator("FusedGemm", SUMS, domain=MICROSOFT)
operator("FusedMatMul", SUMS, domain=MICROSOFT)
operator("GatedAdd", KEEPS_SHAPE, domain=MICROSOFT)
operator("GatedRMSNorm", KEEPS_SHAPE, domain=MICROSOFT)
operator("GatherND", MOVES, domain=MICROSOFT)
operator("Gelu", ELEMENTWISE, domain=MICROSOFT)
operator("GroupQueryAttention", SUMS, shaped_by=(6,), domain=MICROSOFT)
operator("Inverse", KEEPS_SHAPE, domain=MICROSOFT)
operator("LinearAttention", SUMS, domain=MICROSOFT)
operator("LinearAttentionGate", KEEPS_SHAPE, domain=MICROSOFT)
operator("MRotaryEmbedding", KEEPS_SHAPE, domain=MICROSOFT)
operator("MatMulBnb4", SUMS, domain=MICROSOFT)
operator("MatMulNBits", SUMS, domain=MICROSOFT)
operator("MoE", KEEPS_SHAPE, domain=MICROSOFT)
operator("MultiHeadAttention", SUMS, domain=MICROSOFT)
operator("Pad", GROWS, shaped_by=(1,), domain=MICROSOFT)
operator("QLinearAdd", domain=MICROSOFT, quantized=2)
operator("QLinearAveragePool", domain=MICROSOFT, quantized=1)
operator("QLinearConv", domain=MICROSOFT, quantized=2)
operator("QLinearGlobalAveragePool", domain=MICROSOFT, quantized=1)
operator("QLinearLeakyRelu", domain=MICROSOFT, quantized=1)
operator("QLinearMul", domain=MICROSOFT, quantized=2)
operator("QLinearSigmoid", domain=MICROSOFT, quantized=1)
operator("QLinearSoftmax", domain=MICROSOFT, quantized=1)
operator("QMoE", KEEPS_SHAPE, domain=MICROSOFT)
operator("QuantizeLinear", KEEPS_SHAPE, domain=MICROSOFT)
operator("QuickGelu", ELEMENTWISE, domain=MICROSOFT)
operator("Range", GROWS, shaped_by=(0, 1, 2), domain=MICROSOFT)
operator("Sampling", RANDOM, domain=MICROSOFT)
operator("SimplifiedLayerNormalization", KEEPS_SHAPE, domain=MICROSOFT)
operator("SparseAttention", SUMS, domain=MICROSOFT)
operator("Tokenizer", SHAPED_BY_DATA, domain=MICROSOFT)
operator("TransposeMatMul", SUMS, domain=MICROSOFT)
operator("Trilu", KEEPS_SHAPE, domain=MICROSOFT)
operator("UnfoldTensor", MOVES, GROWS, domain=MICROSOFT)
operator("Unique", SHAPED_BY_DATA, domain=MICROSOFT)

for _op in (
    "Constant", "ConvInteger", "Crop", "Det", "GlobalLpPool", "LpPool", "MatMulInteger", "NegativeLogLikelihoodLoss",
    "RoiAlign", "Shape", "Size", "SoftmaxCrossEntropyLoss", "SwiGLU", "TfIdfVectorizer",
):  # fmt: skip
    operator(_op)
for _op in (
    "BiasSoftmax", "CDist", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "EmbedLayerNormalization",
    "GatedDeltaNet", "GatherBlockQuantized", "GridSample", "MatMulInteger16", "MatMulIntegerToFloat",
    "NGramRepeatBlock", "NhwcFusedConv", "NhwcMaxPool", "QAttention", "QEmbedLayerNormalization", "QGemm",
    "QLinearConcat", "QLinearWhere", "RotaryEmbedding", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
):  # fmt: skip
    operator(_op, domain=MICROSOFT)
