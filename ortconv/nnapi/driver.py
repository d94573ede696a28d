"""The API for authors of drivers, which are devices outside ortconv.

A driver is a subclass of `Device` and one of `PreparedModel`:

    class Dsp(Device):
        name, version, type = "example-dsp", "1.0", DeviceType.ACCELERATOR
        level = FeatureLevel.LEVEL_3
        capabilities = Capabilities.uniform(Performance(exec_time=0.4, power_usage=0.2))

        def supported_operations(self, model: Model) -> list[bool]:
            return [operation.code is Operation.RELU for operation in model.operations]

        def takes(self, code: Operation, kind: Operand) -> bool:
            return code is Operation.RELU and kind is Operand.TENSOR_FLOAT32

        def prepare(self, model: Model, options: PrepareOptions) -> PreparedModel:
            return PreparedRelus(model)

**The model.** `supported_operations` and `prepare` receive a finished `Model` whose level is at most the device's.
`operations` are in execution order; each has a `code`, and `inputs` and `outputs`, which are indices of `operands`. An
operand has a `kind` (an `OperandType`), a `lifetime`, a `value` if it is a constant, and a `model` if it belongs to IF
or WHILE. `inputs` and `outputs` of the model are indices of operands, too.

**An execution.** `PreparedModel.execute` receives a `Tensor` for each input, None for one that is omitted. It returns a
`Tensor` for each output, and the `Timing` if `measure` is true. `room` is the size in bytes of each output's buffer:
raise `OutputTooSmallError` for a larger output. Call `limits.check(ResultCode.MISSED_DEADLINE_TRANSIENT)` between
operations. Several threads may execute at once.

**Failures.** Raise `NnapiError` with a result code. Any other exception counts as the death of the driver, DEAD_OBJECT,
and so does an answer that a driver must not give, such as a result of another type or size. Without a list of devices
in the compilation, the CPU takes over in both cases.

**Buffers.** A device whose `allocates` returns True owns memory that `MemoryDesc` describes. A device with
`cache_files` stores prepared models in the files of `PrepareOptions.cache`, and loads them in `prepare_from_cache`.

**Installation.** A package provides its devices as entry points; the class is called without arguments:

    [project.entry-points."ortconv.nnapi_devices"]
    example-dsp = "ortconv_example_dsp:Dsp"

Then `--device example-dsp` names the device in every verb, as a profile's name does, and so do
`ortconv.nnapi.load_device` and ORTCONV_NNAPI_DEVICES. `ortconv nnapi conformance --device example-dsp --specs DIR`
checks it against conformance records. `examples/nnapi_device` is a complete package.
"""

from ortconv.nnapi.caching import CacheFiles
from ortconv.nnapi.codes import DeviceType, FeatureLevel, Operand, Operation, Preference, Priority, ResultCode
from ortconv.nnapi.cpu import CpuProgram, RunLimits
from ortconv.nnapi.device import (
    MAX_CACHE_FILES,
    Capabilities,
    Device,
    Performance,
    PreparedModel,
    PrepareOptions,
    Timing,
)
from ortconv.nnapi.errors import NnapiError, OutputTooSmallError
from ortconv.nnapi.extension import Attributes, code_of
from ortconv.nnapi.model import Model, ModelOperand, ModelOperation
from ortconv.nnapi.operand import ChannelQuant, Lifetime, OperandType, Tensor
from ortconv.nnapi.registry import Extension, ExtensionOperand
from ortconv.nnapi.running import OperandValue

__all__ = [
    "MAX_CACHE_FILES", "Attributes", "CacheFiles", "Capabilities", "ChannelQuant", "CpuProgram", "Device", "DeviceType",
    "Extension", "ExtensionOperand", "FeatureLevel", "Lifetime", "Model", "ModelOperand", "ModelOperation", "NnapiError",
    "Operand", "OperandType", "OperandValue", "Operation", "OutputTooSmallError", "Performance", "Preference",
    "PrepareOptions", "PreparedModel", "Priority", "ResultCode", "RunLimits", "Tensor", "Timing", "code_of",
]  # fmt: skip
