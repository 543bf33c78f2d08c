"""Generated from reflection.proto by scripts/generate_protos; do not edit.

These messages share the pool of ModelConfig, which only naiad uses, so that packages with the same
message names (tritonclient) can be imported in the same process.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory

from naiad.config.proto.model_config_pb2 import POOL

DESCRIPTOR_BYTES = (
    b'\n$naiad/gateway/proto/reflection.proto\x12\x12grpc.reflection.v1"\xf3\x02\n\x17S'
    b'erverReflectionRequest\x12\x12\n\x04host\x18\x01 \x01(\tR\x04host\x12*\n\x10file_by_filename\x18\x03'
    b' \x01(\tH\x00R\x0efileByFilename\x126\n\x16file_containing_symbol\x18\x04 \x01(\tH\x00R\x14fileCo'
    b'ntainingSymbol\x12b\n\x19file_containing_extension\x18\x05 \x01(\x0b2$.grpc.reflect'
    b'ion.v1.ExtensionRequestH\x00R\x17fileContainingExtension\x12B\n\x1dall_extens'
    b'ion_numbers_of_type\x18\x06 \x01(\tH\x00R\x19allExtensionNumbersOfType\x12%\n\rlist_s'
    b'ervices\x18\x07 \x01(\tH\x00R\x0clistServicesB\x11\n\x0fmessage_request"f\n\x10ExtensionReq'
    b"uest\x12'\n\x0fcontaining_type\x18\x01 \x01(\tR\x0econtainingType\x12)\n\x10extension_numbe"
    b'r\x18\x02 \x01(\x05R\x0fextensionNumber"\xae\x04\n\x18ServerReflectionResponse\x12\x1d\n\nvalid_h'
    b'ost\x18\x01 \x01(\tR\tvalidHost\x12V\n\x10original_request\x18\x02 \x01(\x0b2+.grpc.reflection'
    b'.v1.ServerReflectionRequestR\x0foriginalRequest\x12f\n\x18file_descriptor_'
    b'response\x18\x04 \x01(\x0b2*.grpc.reflection.v1.FileDescriptorResponseH\x00R\x16fi'
    b'leDescriptorResponse\x12r\n\x1eall_extension_numbers_response\x18\x05 \x01(\x0b2+.g'
    b'rpc.reflection.v1.ExtensionNumberResponseH\x00R\x1ballExtensionNumbers'
    b"Response\x12_\n\x16list_services_response\x18\x06 \x01(\x0b2'.grpc.reflection.v1.Li"
    b'stServiceResponseH\x00R\x14listServicesResponse\x12J\n\x0eerror_response\x18\x07 \x01('
    b'\x0b2!.grpc.reflection.v1.ErrorResponseH\x00R\rerrorResponseB\x12\n\x10message'
    b'_response"L\n\x16FileDescriptorResponse\x122\n\x15file_descriptor_proto\x18\x01 \x03'
    b'(\x0cR\x13fileDescriptorProto"j\n\x17ExtensionNumberResponse\x12$\n\x0ebase_type_'
    b'name\x18\x01 \x01(\tR\x0cbaseTypeName\x12)\n\x10extension_number\x18\x02 \x03(\x05R\x0fextensionNum'
    b'ber"T\n\x13ListServiceResponse\x12=\n\x07service\x18\x01 \x03(\x0b2#.grpc.reflection.v1'
    b'.ServiceResponseR\x07service"%\n\x0fServiceResponse\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name'
    b'"S\n\rErrorResponse\x12\x1d\n\nerror_code\x18\x01 \x01(\x05R\terrorCode\x12#\n\rerror_messag'
    b'e\x18\x02 \x01(\tR\x0cerrorMessage2\x89\x01\n\x10ServerReflection\x12u\n\x14ServerReflectionIn'
    b'fo\x12+.grpc.reflection.v1.ServerReflectionRequest\x1a,.grpc.reflectio'
    b'n.v1.ServerReflectionResponse(\x010\x01b\x06proto3'
)

POOL.AddSerializedFile(DESCRIPTOR_BYTES)

ServerReflectionRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.reflection.v1.ServerReflectionRequest")
)

ExtensionRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.reflection.v1.ExtensionRequest")
)

ServerReflectionResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.reflection.v1.ServerReflectionResponse")
)

FileDescriptorResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.reflection.v1.FileDescriptorResponse")
)

ExtensionNumberResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.reflection.v1.ExtensionNumberResponse")
)

ListServiceResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.reflection.v1.ListServiceResponse")
)

ServiceResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.reflection.v1.ServiceResponse")
)

ErrorResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.reflection.v1.ErrorResponse")
)
