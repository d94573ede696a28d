"""Facts about operators, called traits: rows of operators with equal facts.

Every operator of ONNX is in a row, and so is every operator of ONNX Runtime that has a kernel. A row without traits means that no
trait holds. Kernels, support rules and lowerings are not traits; they are in tables of their own.
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
    names: str,
    *flags: Trait,
    domain: str = "",
    shaped_by: tuple[int, ...] = (),
    random_if: int | None = None,
    quantized: int = 0,
) -> None:
    """State the facts about some operators, whose names spaces separate."""
    for op in names.split():
        assert (domain, op) not in _TABLE, op
        _TABLE[domain, op] = Traits(frozenset(flags), shaped_by, random_if, quantized)


(ELEMENTWISE, BROADCASTS, COMMUTATIVE, REDUCES, MOVES, ORDERED, JOINS, PICKS, VIEW, KEEPS_SHAPE, NONNEGATIVE, SUMS, GROWS,
 RANDOM, SHAPED_BY_DATA, QDQ, DQ) = Trait  # fmt: skip

# One operand, element by element.
operator("Acos Acosh Asinh Atanh Cosh Erf Sinh Tan", ELEMENTWISE)
operator("Asin Atan Ceil Cos Floor Log Neg Reciprocal Round Sign Sin Tanh", ELEMENTWISE, QDQ)
operator("Affine Celu Mish ParametricSoftplus Scale ScaledTanh Selu Shrink Softsign Swish ThresholdedRelu", ELEMENTWISE)
operator("Clip Elu Gelu HardSwish LeakyRelu", ELEMENTWISE, QDQ)
operator("Abs Exp HardSigmoid Relu Sigmoid Sqrt", ELEMENTWISE, NONNEGATIVE, QDQ)
operator("Softplus", ELEMENTWISE, NONNEGATIVE)
operator("BitCast BitwiseNot Cast CastLike IsInf IsNaN Not RegexFullMatch", ELEMENTWISE)
operator("Identity", ELEMENTWISE, MOVES, ORDERED, VIEW)
operator("Gelu QuickGelu", ELEMENTWISE, domain=MICROSOFT)

# Several operands, broadcast.
operator("And BitwiseAnd BitwiseOr BitwiseXor Mean Or Sum Xor", BROADCASTS, COMMUTATIVE)
operator("Add Mul", BROADCASTS, COMMUTATIVE, QDQ)
operator("Equal", BROADCASTS, COMMUTATIVE, DQ)
operator("Div Max Min Pow Sub Where", BROADCASTS, QDQ)
operator("Greater GreaterOrEqual Less LessOrEqual", BROADCASTS, DQ)
operator("BitShift Mod StringConcat", BROADCASTS)
operator("PRelu", BROADCASTS, KEEPS_SHAPE, QDQ)
operator("BiasGelu FastGelu", BROADCASTS, domain=MICROSOFT)

# Elements that are moved, joined or selected.
operator("DepthToSpace Gather GatherElements SpaceToDepth", MOVES, QDQ)
operator("GatherND", MOVES)
operator("ReverseSequence", MOVES, KEEPS_SHAPE)
operator("Compress", MOVES, SHAPED_BY_DATA)
operator("Tile", MOVES, GROWS, QDQ, shaped_by=(1, 2))
operator("Transpose", MOVES, VIEW, QDQ)
operator("Split", MOVES, VIEW, QDQ, shaped_by=(1,))
operator("Slice", MOVES, VIEW, QDQ, shaped_by=(1, 2, 3, 4))
operator("Expand", MOVES, VIEW, GROWS, QDQ, shaped_by=(1,))
operator("Flatten", MOVES, ORDERED, VIEW, QDQ)
operator("Reshape Squeeze Unsqueeze", MOVES, ORDERED, VIEW, QDQ, shaped_by=(1,))
operator("Concat", JOINS, QDQ)
operator("GlobalMaxPool MaxPool", PICKS, QDQ)
operator("MaxRoiPool", PICKS)
operator("TopK", PICKS, QDQ, shaped_by=(1,))
operator("Unique", PICKS, SHAPED_BY_DATA)
operator("GatherND", MOVES, domain=MICROSOFT)
operator("UnfoldTensor", MOVES, GROWS, domain=MICROSOFT)
operator("ExpandDims", MOVES, ORDERED, VIEW, shaped_by=(1,), domain=MICROSOFT)

# Reductions, and sums of products.
operator("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare", REDUCES, shaped_by=(1,))
operator("ReduceMean ReduceProd ReduceSum", REDUCES, QDQ, shaped_by=(1,))
operator("ReduceMax ReduceMin", REDUCES, PICKS, QDQ, shaped_by=(1,))
operator("Conv ConvTranspose Einsum", SUMS, QDQ)
operator("Gemm MatMul", SUMS, DQ)
operator("Attention CausalConvWithState DeformConv GRU LSTM LinearAttention RNN", SUMS)
operator("Attention CausalConvWithState FusedConv FusedGemm FusedMatMul LinearAttention", SUMS, domain=MICROSOFT)
operator("MatMulBnb4 MatMulNBits MultiHeadAttention SparseAttention TransposeMatMul", SUMS, domain=MICROSOFT)
operator("ConvTransposeWithDynamicPads", SUMS, shaped_by=(2,), domain=MICROSOFT)
operator("DecoderMaskedMultiHeadAttention", SUMS, shaped_by=(7,), domain=MICROSOFT)
operator("GroupQueryAttention", SUMS, shaped_by=(6,), domain=MICROSOFT)

# Other operators that keep the shape.
operator("CumSum InstanceNormalization LRN LayerNormalization LogSoftmax LpNormalization", KEEPS_SHAPE, QDQ)
operator("BatchNormalization RMSNormalization ScatterElements", KEEPS_SHAPE, QDQ)
operator("GroupNormalization MeanVarianceNormalization SimplifiedLayerNormalization", KEEPS_SHAPE)
operator("DequantizeLinear DynamicQuantizeLinear QuantizeLinear", KEEPS_SHAPE)
operator("CumProd ImageScaler RotaryEmbedding Scatter ScatterND TensorScatter Trilu", KEEPS_SHAPE)
operator("Hardmax", KEEPS_SHAPE, NONNEGATIVE)
operator("Softmax", KEEPS_SHAPE, NONNEGATIVE, QDQ)
operator("EyeLike", KEEPS_SHAPE, GROWS)
operator("Dropout", KEEPS_SHAPE, VIEW, random_if=2)
operator("DequantizeLinear GatedAdd GatedRMSNorm Inverse LinearAttentionGate", KEEPS_SHAPE, domain=MICROSOFT)
operator("MRotaryEmbedding MoE QMoE QuantizeLinear SimplifiedLayerNormalization Trilu", KEEPS_SHAPE, domain=MICROSOFT)

# Results whose sizes are given by numbers.
operator("BlackmanWindow ConstantOfShape HammingWindow HannWindow", GROWS, shaped_by=(0,))
operator("AffineGrid CenterCropPad OneHot Upsample", GROWS, shaped_by=(1,))
operator("MaxUnpool", GROWS, shaped_by=(2,))
operator("Col2Im DFT", GROWS, shaped_by=(1, 2))
operator("STFT", GROWS, shaped_by=(1, 2, 3))
operator("Range", GROWS, shaped_by=(0, 1, 2))
operator("MelWeightMatrix", GROWS, shaped_by=(0, 1, 2, 3, 4))
operator("Pad", GROWS, QDQ, shaped_by=(1, 3))
operator("Resize", GROWS, QDQ, shaped_by=(1, 2, 3))
operator("DynamicSlice", shaped_by=(1, 2, 3))
operator("Pad", GROWS, shaped_by=(1,), domain=MICROSOFT)
operator("Range", GROWS, shaped_by=(0, 1, 2), domain=MICROSOFT)

# Random numbers, control flow, sequences, and results whose sizes follow from data.
operator("Multinomial RandomNormal RandomUniform", RANDOM)
operator("Bernoulli RandomNormalLike RandomUniformLike", RANDOM, KEEPS_SHAPE)
operator("Sampling", RANDOM, domain=MICROSOFT)
operator("BitmaskDropout", random_if=2, domain=MICROSOFT)
operator("BiasDropout BitmaskBiasDropout", random_if=4, domain=MICROSOFT)
operator("If Loop Scan", SHAPED_BY_DATA)
operator("Optional OptionalGetElement OptionalHasElement", SHAPED_BY_DATA)
operator("ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert", SHAPED_BY_DATA)
operator("SequenceLength SequenceMap SplitToSequence", SHAPED_BY_DATA)
operator("ImageDecoder NonMaxSuppression NonZero StringNormalizer StringSplit", SHAPED_BY_DATA)
operator("Tokenizer Unique", SHAPED_BY_DATA, domain=MICROSOFT)

# Quantized operators, and those without any of these traits.
operator("QLinearConv QLinearMatMul", quantized=2)
operator("QLinearAdd QLinearConv QLinearMul", quantized=2, domain=MICROSOFT)
operator("QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu", quantized=1, domain=MICROSOFT)
operator("QLinearSigmoid QLinearSoftmax", quantized=1, domain=MICROSOFT)
operator("ArgMax ArgMin", DQ)
operator("AveragePool GlobalAveragePool GridSample", QDQ)
operator("Constant ConvInteger Crop Det GlobalLpPool LpPool MatMulInteger NegativeLogLikelihoodLoss")
operator("RoiAlign Shape Size SoftmaxCrossEntropyLoss SwiGLU TfIdfVectorizer")
operator("BiasSoftmax CDist DynamicQuantizeLSTM DynamicQuantizeMatMul EmbedLayerNormalization", domain=MICROSOFT)
operator("GatedDeltaNet GatherBlockQuantized GridSample MatMulInteger16 MatMulIntegerToFloat", domain=MICROSOFT)
operator("NGramRepeatBlock NhwcFusedConv NhwcMaxPool QAttention QEmbedLayerNormalization QGemm", domain=MICROSOFT)
operator("QLinearConcat QLinearWhere RotaryEmbedding SkipLayerNormalization", domain=MICROSOFT)
operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)

_TABLE = dict(sorted(_TABLE.items()))
