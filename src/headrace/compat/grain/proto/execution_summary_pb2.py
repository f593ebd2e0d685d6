"""The messages that Grain describes the execution of a pipeline by, byte for byte; Headrace does not fill them.

Needs `protobuf`. The messages have their own pool, so Grain's may be in the same process.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "grain.python.execution_summary"
_Field = descriptor_pb2.FieldDescriptorProto
_NODE = {
    "id": _Field.TYPE_INT32,
    "name": _Field.TYPE_STRING,
    "inputs": _Field.TYPE_INT32,
    "wait_time_ratio": _Field.TYPE_DOUBLE,
    "total_processing_time_ns": _Field.TYPE_INT64,
    "min_processing_time_ns": _Field.TYPE_INT64,
    "max_processing_time_ns": _Field.TYPE_INT64,
    "num_produced_elements": _Field.TYPE_INT64,
    "output_spec": _Field.TYPE_STRING,
    "is_output": _Field.TYPE_BOOL,
    "is_prefetch": _Field.TYPE_BOOL,
    "bytes_consumed": _Field.TYPE_INT64,
    "bytes_produced": _Field.TYPE_INT64,
}


def _field(
    name: str, number: int, kind: int, *, many: bool = False, of: str = ""
) -> descriptor_pb2.FieldDescriptorProto:
    label = _Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL
    type_name = f".{_PACKAGE}.{of}" if of else None
    return _Field(name=name, number=number, label=label, type=kind, type_name=type_name)  # type: ignore[arg-type]


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="grain/proto/execution_summary.proto", package=_PACKAGE, syntax="proto3"
    )
    summary = file.message_type.add(name="ExecutionSummary")
    summary.field.append(_field("nodes", 1, _Field.TYPE_MESSAGE, many=True, of="ExecutionSummary.NodesEntry"))
    node = summary.nested_type.add(name="Node")
    for number, (name, kind) in enumerate(_NODE.items(), 2):
        node.field.append(_field(name, number, kind, many=name == "inputs"))
    entry = summary.nested_type.add(name="NodesEntry")
    entry.options.map_entry = True
    entry.field.append(_field("key", 1, _Field.TYPE_INT32))
    entry.field.append(_field("value", 2, _Field.TYPE_MESSAGE, of="ExecutionSummary.Node"))
    several = file.message_type.add(name="ExecutionSummaries")
    several.field.append(_field("execution_summaries", 1, _Field.TYPE_MESSAGE, many=True, of="ExecutionSummary"))
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
DESCRIPTOR = _pool.FindFileByName("grain/proto/execution_summary.proto")
ExecutionSummary = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ExecutionSummary"])
ExecutionSummaries = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ExecutionSummaries"])
