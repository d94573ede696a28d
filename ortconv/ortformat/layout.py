"""The tables of the ORT format: slots, kinds, defaults and required fields. `schemas/ort.fbs` is the readable form.

Writer, decoder and verifier get all facts about the binary format from here.
"""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.operators import MICROSOFT

IDENTIFIER = b"ORTM"
VERSIONS = (1, 2, 3, 4, 5, 6)
LARGEST_FILE = 2**31 - 1
LARGEST_VISITS = 1_000_000
"""Maximum number of tables that onnxruntime's verifier visits; a shared table counts once per reference."""
LARGEST_DEPTH = 64
"""Maximum depth of tables in onnxruntime's verifier."""
LARGEST_NESTING = 18
"""Maximum nesting of subgraphs within that depth."""

CPU = "CPUExecutionProvider"
ALWAYS_IMPORTED = {
    "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1, "ai.onnx.training": 1, MICROSOFT: 1,
    "com.microsoft.experimental": 1, "com.microsoft.nchwc": 1, "org.pytorch.aten": 1,
}  # fmt: skip
"""Operator sets that onnxruntime imports in every file that it writes. Its NhwcTransformer, which runs when a file is loaded,
creates com.microsoft operators even if the model has none.
"""

NO_MODEL_VERSION = 2**63 - 1
"""The model version that onnxruntime writes for a model without one."""

SCALARS = {"bool": "B", "u8": "B", "i8": "b", "i32": "i", "u32": "I", "i64": "q", "f32": "f"}
"""Scalar kinds and their struct codes."""

ENUMS = {"NodeType": ("i32", 2), "AttributeType": ("i32", 13), "TensorDataType": ("i32", 21), "ElementType": ("i32", 29),
         "TypeInfoValue": ("u8", 4), "DimensionValueType": ("i8", 3), "ArgType": ("i8", 2)}  # fmt: skip
"""Enumerations: their scalar kind, and the number of their values, counted from 0.

An ElementType is a TensorDataType or a later ONNX type: onnxruntime writes and reads those of values unchanged.
"""

UNION = ("", "TensorTypeAndShape", "SequenceType", "MapType")
"""The table for each tag in TypeInfo.value_type."""

EDGE_END_BYTES = 12
"""EdgeEnd is a struct: node_index u32, src_arg_index i32, dst_arg_index i32."""


class Field(NamedTuple):
    """One slot of a table. `kind` is a scalar, an enumeration, string (UTF-8), bytes (a string of any bytes), union, a table, or,
    in brackets, a vector of one of them.
    """

    name: str
    kind: str
    required: bool = False
    default: int | float | None = None


def fields_of(text: str) -> tuple[Field | None, ...]:
    """Fields from "name:kind" words in order of slots. ! marks a required field, = a default, and _ an unused slot."""
    fields: list[Field | None] = []
    for word in text.split():
        if word == "_":
            fields.append(None)
            continue
        name, kind = word.split(":")
        kind, _, default = kind.partition("=")
        required = kind.endswith("!")
        kind = kind.rstrip("!")
        scalar = kind in SCALARS or kind in ENUMS
        number = float if kind == "f32" else int
        fields.append(Field(name, kind, required, number(default or 0) if scalar else None))
    return tuple(fields)


TABLES: dict[str, tuple[Field | None, ...]] = {name: fields_of(text) for name, text in {
    "InferenceSession": "ort_version:string! model:Model! _ kernel_type_str_resolver:KernelTypeStrResolver",
    "Model": "ir_version:i64 opset_import:[OperatorSetId]! producer_name:string producer_version:string domain:string"
             " model_version:i64 doc_string:string graph:Graph! graph_doc_string:string"
             " metadata_props:[StringStringEntry]",
    "OperatorSetId": "domain:string! version:i64",
    "StringStringEntry": "key:string! value:string",
    "Graph": "initializers:[Tensor] node_args:[ValueInfo] nodes:[Node] max_node_index:u32 node_edges:[NodeEdge]"
             " inputs:[string] outputs:[string] sparse_initializers:[SparseTensor]"
             " runtime_optimizations:RuntimeOptimizations",
    "Node": "name:string doc_string:string domain:string since_version:i32 index:u32 op_type:string! type:NodeType"
            " execution_provider_type:string inputs:[string]! outputs:[string]! attributes:[Attribute]"
            " input_arg_counts:[i32]! implicit_inputs:[string]!",
    "NodeEdge": "node_index:u32 input_edges:[EdgeEnd] output_edges:[EdgeEnd]",
    "ValueInfo": "name:string! doc_string:string type:TypeInfo",
    "TypeInfo": "denotation:string value_type:TypeInfoValue value:union",
    "TensorTypeAndShape": "elem_type:ElementType shape:Shape",
    "Shape": "dim:[Dimension]",
    "Dimension": "value:DimensionValue denotation:string",
    "DimensionValue": "dim_type:DimensionValueType dim_value:i64 dim_param:string",
    "SequenceType": "elem_type:TypeInfo!",
    "MapType": "key_type:TensorDataType value_type:TypeInfo!",
    "Tensor": "name:string doc_string:string dims:[i64]! data_type:TensorDataType raw_data:[u8] string_data:[bytes]"
              " external_data_offset:i64=-1",
    "SparseTensor": "values:Tensor! indices:Tensor! dims:[i64]!",
    "Attribute": "name:string! doc_string:string type:AttributeType f:f32 i:i64 s:bytes t:Tensor g:Graph floats:[f32]"
                 " ints:[i64] strings:[bytes] tensors:[Tensor] graphs:[Graph]",
    "RuntimeOptimizations": "records:[RuntimeOptimizationRecordContainerEntry]",
    "RuntimeOptimizationRecordContainerEntry":
        "optimizer_name:string! runtime_optimization_records:[RuntimeOptimizationRecord]",
    "RuntimeOptimizationRecord":
        "action_id:string nodes_to_optimize_indices:NodesToOptimizeIndices _ produced_op_ids:[string]",
    "NodesToOptimizeIndices": "node_indices:[u32] num_inputs:u32 num_outputs:u32 has_variadic_input:bool"
                              " has_variadic_output:bool num_variadic_inputs:u32 num_variadic_outputs:u32",
    "KernelTypeStrResolver": "op_kernel_type_str_args:[OpIdKernelTypeStrArgsEntry]",
    "OpIdKernelTypeStrArgsEntry": "op_id:string! kernel_type_str_args:[KernelTypeStrArgsEntry]",
    "KernelTypeStrArgsEntry": "kernel_type_str:string! args:[ArgTypeAndIndex]",
    "ArgTypeAndIndex": "arg_type:ArgType index:u32",
}.items()}  # fmt: skip


def stored(kind: str) -> str | None:
    """The scalar kind in which a scalar or enumeration is stored; None for kinds stored as references."""
    return kind if kind in SCALARS else ENUMS[kind][0] if kind in ENUMS else None
