"""The tables of LiteRT's .tflite files that ortconv writes: slots, kinds and codes. `schemas/tflite.fbs` states the same in the
schema language, and a test keeps the two equal.

Enumerations are plain scalars here; the numbers of operators, element types and options stand in tables of their own.
"""

from __future__ import annotations

from enum import IntEnum

from ortconv.ortformat.layout import fields_of

IDENTIFIER = b"TFL3"
VERSION = 3
LARGEST_FILE = 2**31 - 1


class ElementType(IntEnum):
    """TensorType of the schema."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT32 = 2
    UINT8 = 3
    BOOL = 6
    INT8 = 9


class Padding(IntEnum):
    SAME = 0
    VALID = 1


NEWER_CODE = 127
"""The value of the oldest field for an operator code, a byte, if the code is in the newer field: that is 127 or more."""

OPERATORS: dict[str, tuple[int, str]] = {
    "ABS": (101, ""), "ADD": (0, "AddOptions"), "ARG_MAX": (56, "ArgMaxOptions"), "ARG_MIN": (79, "ArgMinOptions"),
    "AVERAGE_POOL_2D": (1, "Pool2DOptions"), "BATCH_MATMUL": (126, "BatchMatMulOptions"), "BATCH_TO_SPACE_ND": (37, ""),
    "CAST": (53, "CastOptions"), "CONCATENATION": (2, "ConcatenationOptions"), "CONV_2D": (3, "Conv2DOptions"),
    "DEPTHWISE_CONV_2D": (4, "DepthwiseConv2DOptions"), "DEPTH_TO_SPACE": (5, "DepthToSpaceOptions"), "DEQUANTIZE": (6, ""),
    "DIV": (42, "DivOptions"), "ELU": (111, ""), "EMBEDDING_LOOKUP": (7, ""), "EQUAL": (71, ""), "EXP": (47, ""),
    "EXPAND_DIMS": (70, ""), "FILL": (94, ""), "FLOOR": (8, ""), "FLOOR_DIV": (90, ""),
    "FULLY_CONNECTED": (9, "FullyConnectedOptions"), "GATHER": (36, "GatherOptions"), "GREATER": (61, ""),
    "GREATER_EQUAL": (62, ""), "HARD_SWISH": (117, ""), "L2_NORMALIZATION": (11, "L2NormOptions"),
    "L2_POOL_2D": (12, "Pool2DOptions"), "LESS": (58, ""), "LESS_EQUAL": (63, ""),
    "LOCAL_RESPONSE_NORMALIZATION": (13, "LocalResponseNormalizationOptions"), "LOG": (73, ""), "LOGICAL_AND": (86, ""),
    "LOGICAL_NOT": (87, ""), "LOGICAL_OR": (84, ""), "LOGISTIC": (14, ""), "LOG_SOFTMAX": (50, ""), "MAXIMUM": (55, ""),
    "MAX_POOL_2D": (17, "Pool2DOptions"), "MEAN": (40, "ReducerOptions"), "MINIMUM": (57, ""),
    "MIRROR_PAD": (100, "MirrorPadOptions"), "MUL": (18, "MulOptions"), "NEG": (59, ""), "NOT_EQUAL": (72, ""),
    "PACK": (83, "PackOptions"), "PAD": (34, ""), "PADV2": (60, ""), "POW": (78, ""), "PRELU": (54, ""), "QUANTIZE": (114, ""),
    "RANK": (110, ""), "REDUCE_ALL": (140, "ReducerOptions"), "REDUCE_ANY": (91, "ReducerOptions"),
    "REDUCE_MAX": (82, "ReducerOptions"), "REDUCE_MIN": (89, "ReducerOptions"), "REDUCE_PROD": (81, "ReducerOptions"),
    "RELU": (19, ""), "RELU6": (21, ""), "RELU_N1_TO_1": (20, ""), "RESHAPE": (22, "ReshapeOptions"),
    "RESIZE_BILINEAR": (23, "ResizeBilinearOptions"), "RESIZE_NEAREST_NEIGHBOR": (97, "ResizeNearestNeighborOptions"),
    "REVERSE_V2": (105, ""), "RSQRT": (76, ""), "SELECT": (64, ""), "SIN": (66, ""), "SLICE": (65, ""),
    "SOFTMAX": (25, "SoftmaxOptions"), "SPACE_TO_BATCH_ND": (38, ""), "SPACE_TO_DEPTH": (26, "SpaceToDepthOptions"),
    "SPLIT": (49, "SplitOptions"), "SQRT": (75, ""), "SQUEEZE": (43, "SqueezeOptions"),
    "STRIDED_SLICE": (45, "StridedSliceOptions"), "SUB": (41, "SubOptions"), "SUM": (74, "ReducerOptions"), "TANH": (28, ""),
    "TILE": (69, ""), "TRANSPOSE": (39, ""), "TRANSPOSE_CONV": (67, "TransposeConvOptions"),
}  # fmt: skip
"""Code, and the table of options if it has fields that ortconv sets."""

OPTIONS: dict[str, int] = {
    "Conv2DOptions": 1, "DepthwiseConv2DOptions": 2, "Pool2DOptions": 5, "FullyConnectedOptions": 8, "SoftmaxOptions": 9,
    "ConcatenationOptions": 10, "AddOptions": 11, "L2NormOptions": 12, "LocalResponseNormalizationOptions": 13,
    "ResizeBilinearOptions": 15, "ReshapeOptions": 17, "SpaceToDepthOptions": 19, "MulOptions": 21, "GatherOptions": 23,
    "ReducerOptions": 27, "SubOptions": 28, "DivOptions": 29, "SqueezeOptions": 30, "StridedSliceOptions": 32,
    "SplitOptions": 35, "CastOptions": 37, "ArgMaxOptions": 40, "TransposeConvOptions": 49, "ArgMinOptions": 57,
    "PackOptions": 59, "ResizeNearestNeighborOptions": 74, "MirrorPadOptions": 77, "DepthToSpaceOptions": 94,
    "BatchMatMulOptions": 101,
}  # fmt: skip
"""Tags of the union BuiltinOptions."""

TABLES = {name: fields_of(text) for name, text in {
    "Model": "version:u32 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:string buffers:[Buffer] _ _"
             " signature_defs:[SignatureDef]",
    "OperatorCode": "deprecated_builtin_code:i8 _ version:i32=1 builtin_code:i32",
    "SubGraph": "tensors:[Tensor] inputs:[i32] outputs:[i32] operators:[Operator] name:string",
    "Tensor": "shape:[i32] type:i8 buffer:u32 name:string quantization:QuantizationParameters _ _ shape_signature:[i32]"
              " has_rank:bool",
    "QuantizationParameters": "_ _ scale:[f32] zero_point:[i64] _ _ quantized_dimension:i32",
    "Operator": "opcode_index:u32 inputs:[i32] outputs:[i32] builtin_options_type:u8 builtin_options:union",
    "Buffer": "data:[u8]",
    "SignatureDef": "inputs:[TensorMap] outputs:[TensorMap] signature_key:string _ subgraph_index:u32",
    "TensorMap": "name:string tensor_index:u32",
    "Conv2DOptions": "padding:i8 stride_w:i32 stride_h:i32 fused_activation_function:i8 dilation_w_factor:i32=1"
                     " dilation_h_factor:i32=1",
    "DepthwiseConv2DOptions": "padding:i8 stride_w:i32 stride_h:i32 depth_multiplier:i32 fused_activation_function:i8"
                              " dilation_w_factor:i32=1 dilation_h_factor:i32=1",
    "Pool2DOptions": "padding:i8 stride_w:i32 stride_h:i32 filter_width:i32 filter_height:i32 fused_activation_function:i8",
    "FullyConnectedOptions": "fused_activation_function:i8",
    "SoftmaxOptions": "beta:f32",
    "ConcatenationOptions": "axis:i32 fused_activation_function:i8",
    "AddOptions": "fused_activation_function:i8",
    "SubOptions": "fused_activation_function:i8",
    "MulOptions": "fused_activation_function:i8",
    "DivOptions": "fused_activation_function:i8",
    "L2NormOptions": "fused_activation_function:i8",
    "LocalResponseNormalizationOptions": "radius:i32 bias:f32 alpha:f32 beta:f32",
    "ResizeBilinearOptions": "_ _ align_corners:bool half_pixel_centers:bool",
    "ResizeNearestNeighborOptions": "align_corners:bool half_pixel_centers:bool",
    "ReshapeOptions": "new_shape:[i32]",
    "SpaceToDepthOptions": "block_size:i32",
    "DepthToSpaceOptions": "block_size:i32",
    "GatherOptions": "axis:i32",
    "ReducerOptions": "keep_dims:bool",
    "SqueezeOptions": "squeeze_dims:[i32]",
    "StridedSliceOptions": "begin_mask:i32 end_mask:i32 _ _ shrink_axis_mask:i32",
    "SplitOptions": "num_splits:i32",
    "CastOptions": "in_data_type:i8 out_data_type:i8",
    "TransposeConvOptions": "padding:i8 stride_w:i32 stride_h:i32 fused_activation_function:i8",
    "ArgMaxOptions": "output_type:i8",
    "ArgMinOptions": "output_type:i8",
    "MirrorPadOptions": "mode:i8",
    "PackOptions": "values_count:i32 axis:i32",
    "BatchMatMulOptions": "adj_x:bool adj_y:bool",
}.items()}  # fmt: skip
