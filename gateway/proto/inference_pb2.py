"""Generated from inference.proto by scripts/generate_protos; do not edit.

These messages share the pool of ModelConfig, which only naiad uses, so that packages with the same
message names (tritonclient) can be imported in the same process.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory

from naiad.config.proto.model_config_pb2 import POOL

DESCRIPTOR_BYTES = (
    b'\n#naiad/gateway/proto/inference.proto\x12\tinference\x1a%naiad/config/p'
    b'roto/model_config.proto"\x13\n\x11ServerLiveRequest"(\n\x12ServerLiveRespon'
    b'se\x12\x12\n\x04live\x18\x01 \x01(\x08R\x04live"\x14\n\x12ServerReadyRequest"+\n\x13ServerReadyRespo'
    b'nse\x12\x14\n\x05ready\x18\x01 \x01(\x08R\x05ready"A\n\x11ModelReadyRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04na'
    b'me\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version"*\n\x12ModelReadyResponse\x12\x14\n\x05ready\x18\x01 \x01('
    b'\x08R\x05ready"\x17\n\x15ServerMetadataRequest"f\n\x16ServerMetadataResponse\x12\x12\n\x04n'
    b'ame\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12\x1e\n\nextensions\x18\x03 \x03(\tR\ne'
    b'xtensions"D\n\x14ModelMetadataRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version'
    b'\x18\x02 \x01(\tR\x07version"\xcf\x02\n\x15ModelMetadataResponse\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n'
    b'\x08versions\x18\x02 \x03(\tR\x08versions\x12\x1a\n\x08platform\x18\x03 \x01(\tR\x08platform\x12G\n\x06inputs\x18'
    b'\x04 \x03(\x0b2/.inference.ModelMetadataResponse.TensorMetadataR\x06inputs\x12I'
    b'\n\x07outputs\x18\x05 \x03(\x0b2/.inference.ModelMetadataResponse.TensorMetadata'
    b'R\x07outputs\x1aV\n\x0eTensorMetadata\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n\x08datatype\x18\x02 \x01('
    b'\tR\x08datatype\x12\x14\n\x05shape\x18\x03 \x03(\x03R\x05shape"\xd7\x01\n\x0eInferParameter\x12\x1f\n\nbool_par'
    b'am\x18\x01 \x01(\x08H\x00R\tboolParam\x12!\n\x0bint64_param\x18\x02 \x01(\x03H\x00R\nint64Param\x12#\n\x0cstri'
    b'ng_param\x18\x03 \x01(\tH\x00R\x0bstringParam\x12#\n\x0cdouble_param\x18\x04 \x01(\x01H\x00R\x0bdoublePar'
    b'am\x12#\n\x0cuint64_param\x18\x05 \x01(\x04H\x00R\x0buint64ParamB\x12\n\x10parameter_choice"\xc3\x02\n\x13'
    b'InferTensorContents\x12#\n\rbool_contents\x18\x01 \x03(\x08R\x0cboolContents\x12!\n\x0cint_'
    b'contents\x18\x02 \x03(\x05R\x0bintContents\x12%\n\x0eint64_contents\x18\x03 \x03(\x03R\rint64Conten'
    b"ts\x12#\n\ruint_contents\x18\x04 \x03(\rR\x0cuintContents\x12'\n\x0fuint64_contents\x18\x05 \x03(\x04"
    b'R\x0euint64Contents\x12#\n\rfp32_contents\x18\x06 \x03(\x02R\x0cfp32Contents\x12#\n\rfp64_co'
    b'ntents\x18\x07 \x03(\x01R\x0cfp64Contents\x12%\n\x0ebytes_contents\x18\x08 \x03(\x0cR\rbytesContent'
    b's"\x9d\x08\n\x11ModelInferRequest\x12\x1d\n\nmodel_name\x18\x01 \x01(\tR\tmodelName\x12#\n\rmodel_'
    b'version\x18\x02 \x01(\tR\x0cmodelVersion\x12\x0e\n\x02id\x18\x03 \x01(\tR\x02id\x12L\n\nparameters\x18\x04 \x03(\x0b2'
    b',.inference.ModelInferRequest.ParametersEntryR\nparameters\x12E\n\x06inp'
    b'uts\x18\x05 \x03(\x0b2-.inference.ModelInferRequest.InferInputTensorR\x06inputs'
    b'\x12Q\n\x07outputs\x18\x06 \x03(\x0b27.inference.ModelInferRequest.InferRequestedOu'
    b'tputTensorR\x07outputs\x12,\n\x12raw_input_contents\x18\x07 \x03(\x0cR\x10rawInputContent'
    b's\x1a\xcd\x02\n\x10InferInputTensor\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n\x08datatype\x18\x02 \x01(\tR\x08da'
    b'tatype\x12\x14\n\x05shape\x18\x03 \x03(\x03R\x05shape\x12]\n\nparameters\x18\x04 \x03(\x0b2=.inference.Mod'
    b'elInferRequest.InferInputTensor.ParametersEntryR\nparameters\x12:\n\x08c'
    b'ontents\x18\x05 \x01(\x0b2\x1e.inference.InferTensorContentsR\x08contents\x1aX\n\x0fParam'
    b'etersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b2\x19.inference.InferPar'
    b'ameterR\x05value:\x028\x01\x1a\xf3\x01\n\x1aInferRequestedOutputTensor\x12\x12\n\x04name\x18\x01 \x01(\tR\x04'
    b'name\x12g\n\nparameters\x18\x02 \x03(\x0b2G.inference.ModelInferRequest.InferRequ'
    b'estedOutputTensor.ParametersEntryR\nparameters\x1aX\n\x0fParametersEntry'
    b'\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b2\x19.inference.InferParameterR\x05va'
    b'lue:\x028\x01\x1aX\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b2\x19.in'
    b'ference.InferParameterR\x05value:\x028\x01"\xdf\x05\n\x12ModelInferResponse\x12\x1d\n\nmode'
    b'l_name\x18\x01 \x01(\tR\tmodelName\x12#\n\rmodel_version\x18\x02 \x01(\tR\x0cmodelVersion\x12\x0e\n\x02'
    b'id\x18\x03 \x01(\tR\x02id\x12M\n\nparameters\x18\x04 \x03(\x0b2-.inference.ModelInferResponse.'
    b'ParametersEntryR\nparameters\x12I\n\x07outputs\x18\x05 \x03(\x0b2/.inference.ModelIn'
    b'ferResponse.InferOutputTensorR\x07outputs\x12.\n\x13raw_output_contents\x18\x06 '
    b'\x03(\x0cR\x11rawOutputContents\x1a\xd0\x02\n\x11InferOutputTensor\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name'
    b'\x12\x1a\n\x08datatype\x18\x02 \x01(\tR\x08datatype\x12\x14\n\x05shape\x18\x03 \x03(\x03R\x05shape\x12_\n\nparameters'
    b'\x18\x04 \x03(\x0b2?.inference.ModelInferResponse.InferOutputTensor.Paramete'
    b'rsEntryR\nparameters\x12:\n\x08contents\x18\x05 \x01(\x0b2\x1e.inference.InferTensorCon'
    b'tentsR\x08contents\x1aX\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 '
    b'\x01(\x0b2\x19.inference.InferParameterR\x05value:\x028\x01\x1aX\n\x0fParametersEntry\x12\x10\n\x03'
    b'key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b2\x19.inference.InferParameterR\x05value:'
    b'\x028\x01"\x85\x01\n\x18ModelStreamInferResponse\x12#\n\rerror_message\x18\x01 \x01(\tR\x0cerrorMe'
    b'ssage\x12D\n\x0einfer_response\x18\x02 \x01(\x0b2\x1d.inference.ModelInferResponseR\rin'
    b'ferResponse"B\n\x12ModelConfigRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version'
    b'\x18\x02 \x01(\tR\x07version"E\n\x13ModelConfigResponse\x12.\n\x06config\x18\x01 \x01(\x0b2\x16.inferen'
    b'ce.ModelConfigR\x06config"F\n\x16ModelStatisticsRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04'
    b'name\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version"9\n\x11StatisticDuration\x12\x14\n\x05count\x18\x01 \x01'
    b'(\x04R\x05count\x12\x0e\n\x02ns\x18\x02 \x01(\x04R\x02ns"\xf2\x03\n\x0fInferStatistics\x126\n\x07success\x18\x01 \x01(\x0b2\x1c'
    b'.inference.StatisticDurationR\x07success\x120\n\x04fail\x18\x02 \x01(\x0b2\x1c.inference.'
    b'StatisticDurationR\x04fail\x122\n\x05queue\x18\x03 \x01(\x0b2\x1c.inference.StatisticDura'
    b'tionR\x05queue\x12A\n\rcompute_input\x18\x04 \x01(\x0b2\x1c.inference.StatisticDuration'
    b'R\x0ccomputeInput\x12A\n\rcompute_infer\x18\x05 \x01(\x0b2\x1c.inference.StatisticDurat'
    b'ionR\x0ccomputeInfer\x12C\n\x0ecompute_output\x18\x06 \x01(\x0b2\x1c.inference.StatisticD'
    b'urationR\rcomputeOutput\x129\n\tcache_hit\x18\x07 \x01(\x0b2\x1c.inference.StatisticD'
    b'urationR\x08cacheHit\x12;\n\ncache_miss\x18\x08 \x01(\x0b2\x1c.inference.StatisticDurat'
    b'ionR\tcacheMiss"\x86\x03\n\x17InferResponseStatistics\x12A\n\rcompute_infer\x18\x01 \x01('
    b'\x0b2\x1c.inference.StatisticDurationR\x0ccomputeInfer\x12C\n\x0ecompute_output\x18'
    b'\x02 \x01(\x0b2\x1c.inference.StatisticDurationR\rcomputeOutput\x126\n\x07success\x18\x03 '
    b'\x01(\x0b2\x1c.inference.StatisticDurationR\x07success\x120\n\x04fail\x18\x04 \x01(\x0b2\x1c.infer'
    b'ence.StatisticDurationR\x04fail\x12C\n\x0eempty_response\x18\x05 \x01(\x0b2\x1c.inference'
    b'.StatisticDurationR\remptyResponse\x124\n\x06cancel\x18\x06 \x01(\x0b2\x1c.inference.St'
    b'atisticDurationR\x06cancel"\x80\x02\n\x14InferBatchStatistics\x12\x1d\n\nbatch_size\x18\x01'
    b' \x01(\x04R\tbatchSize\x12A\n\rcompute_input\x18\x02 \x01(\x0b2\x1c.inference.StatisticDura'
    b'tionR\x0ccomputeInput\x12A\n\rcompute_infer\x18\x03 \x01(\x0b2\x1c.inference.StatisticD'
    b'urationR\x0ccomputeInfer\x12C\n\x0ecompute_output\x18\x04 \x01(\x0b2\x1c.inference.Statis'
    b'ticDurationR\rcomputeOutput"N\n\x0bMemoryUsage\x12\x12\n\x04type\x18\x01 \x01(\tR\x04type\x12\x0e\n'
    b'\x02id\x18\x02 \x01(\x03R\x02id\x12\x1b\n\tbyte_size\x18\x03 \x01(\x04R\x08byteSize"\xb6\x04\n\x0fModelStatistics\x12\x12'
    b'\n\x04name\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12%\n\x0elast_inference\x18\x03'
    b" \x01(\x04R\rlastInference\x12'\n\x0finference_count\x18\x04 \x01(\x04R\x0einferenceCount\x12'\n\x0f"
    b'execution_count\x18\x05 \x01(\x04R\x0eexecutionCount\x12C\n\x0finference_stats\x18\x06 \x01(\x0b2\x1a'
    b'.inference.InferStatisticsR\x0einferenceStats\x12@\n\x0bbatch_stats\x18\x07 \x03(\x0b2'
    b'\x1f.inference.InferBatchStatisticsR\nbatchStats\x129\n\x0cmemory_usage\x18\x08 \x03'
    b'(\x0b2\x16.inference.MemoryUsageR\x0bmemoryUsage\x12T\n\x0eresponse_stats\x18\t \x03(\x0b2'
    b'-.inference.ModelStatistics.ResponseStatsEntryR\rresponseStats\x1ad\n'
    b'\x12ResponseStatsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x128\n\x05value\x18\x02 \x01(\x0b2".inference'
    b'.InferResponseStatisticsR\x05value:\x028\x01"V\n\x17ModelStatisticsResponse\x12;'
    b'\n\x0bmodel_stats\x18\x01 \x03(\x0b2\x1a.inference.ModelStatisticsR\nmodelStats"\xba\x01\n\x18'
    b'ModelRepositoryParameter\x12\x1f\n\nbool_param\x18\x01 \x01(\x08H\x00R\tboolParam\x12!\n\x0bint'
    b'64_param\x18\x02 \x01(\x03H\x00R\nint64Param\x12#\n\x0cstring_param\x18\x03 \x01(\tH\x00R\x0bstringPara'
    b'm\x12!\n\x0bbytes_param\x18\x04 \x01(\x0cH\x00R\nbytesParamB\x12\n\x10parameter_choice"W\n\x16Repo'
    b"sitoryIndexRequest\x12'\n\x0frepository_name\x18\x01 \x01(\tR\x0erepositoryName\x12\x14\n\x05r"
    b'eady\x18\x02 \x01(\x08R\x05ready"\xca\x01\n\x17RepositoryIndexResponse\x12E\n\x06models\x18\x01 \x03(\x0b2-.'
    b'inference.RepositoryIndexResponse.ModelIndexR\x06models\x1ah\n\nModelInd'
    b'ex\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12\x14\n\x05state\x18\x03 \x01(\tR'
    b'\x05state\x12\x16\n\x06reason\x18\x04 \x01(\tR\x06reason"\x9f\x02\n\x1aRepositoryModelLoadRequest\x12\'\n'
    b'\x0frepository_name\x18\x01 \x01(\tR\x0erepositoryName\x12\x1d\n\nmodel_name\x18\x02 \x01(\tR\tmode'
    b'lName\x12U\n\nparameters\x18\x03 \x03(\x0b25.inference.RepositoryModelLoadRequest'
    b'.ParametersEntryR\nparameters\x1ab\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03ke'
    b'y\x129\n\x05value\x18\x02 \x01(\x0b2#.inference.ModelRepositoryParameterR\x05value:\x028\x01'
    b'"\x1d\n\x1bRepositoryModelLoadResponse"\xa3\x02\n\x1cRepositoryModelUnloadRequest'
    b"\x12'\n\x0frepository_name\x18\x01 \x01(\tR\x0erepositoryName\x12\x1d\n\nmodel_name\x18\x02 \x01(\tR\tm"
    b'odelName\x12W\n\nparameters\x18\x03 \x03(\x0b27.inference.RepositoryModelUnloadRe'
    b'quest.ParametersEntryR\nparameters\x1ab\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01('
    b'\tR\x03key\x129\n\x05value\x18\x02 \x01(\x0b2#.inference.ModelRepositoryParameterR\x05valu'
    b'e:\x028\x01"\x1f\n\x1dRepositoryModelUnloadResponse"5\n\x1fSystemSharedMemoryStat'
    b'usRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name"\xd7\x02\n SystemSharedMemoryStatusRespon'
    b'se\x12R\n\x07regions\x18\x01 \x03(\x0b28.inference.SystemSharedMemoryStatusResponse'
    b'.RegionsEntryR\x07regions\x1ai\n\x0cRegionStatus\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x10\n\x03ke'
    b'y\x18\x02 \x01(\tR\x03key\x12\x16\n\x06offset\x18\x03 \x01(\x04R\x06offset\x12\x1b\n\tbyte_size\x18\x04 \x01(\x04R\x08byteSiz'
    b'e\x1at\n\x0cRegionsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12N\n\x05value\x18\x02 \x01(\x0b28.inference.S'
    b'ystemSharedMemoryStatusResponse.RegionStatusR\x05value:\x028\x01"~\n!Syste'
    b'mSharedMemoryRegisterRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x10\n\x03key\x18\x02 \x01(\tR\x03k'
    b'ey\x12\x16\n\x06offset\x18\x03 \x01(\x04R\x06offset\x12\x1b\n\tbyte_size\x18\x04 \x01(\x04R\x08byteSize"$\n"Syste'
    b'mSharedMemoryRegisterResponse"9\n#SystemSharedMemoryUnregisterReq'
    b'uest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name"&\n$SystemSharedMemoryUnregisterResponse'
    b'"3\n\x1dCudaSharedMemoryStatusRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name"\xc4\x02\n\x1eCudaSh'
    b'aredMemoryStatusResponse\x12P\n\x07regions\x18\x01 \x03(\x0b26.inference.CudaShared'
    b'MemoryStatusResponse.RegionsEntryR\x07regions\x1a\\\n\x0cRegionStatus\x12\x12\n\x04na'
    b'me\x18\x01 \x01(\tR\x04name\x12\x1b\n\tdevice_id\x18\x02 \x01(\x04R\x08deviceId\x12\x1b\n\tbyte_size\x18\x03 \x01(\x04R\x08'
    b'byteSize\x1ar\n\x0cRegionsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12L\n\x05value\x18\x02 \x01(\x0b26.infe'
    b'rence.CudaSharedMemoryStatusResponse.RegionStatusR\x05value:\x028\x01"\x8e\x01\n'
    b'\x1fCudaSharedMemoryRegisterRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1d\n\nraw_hand'
    b'le\x18\x02 \x01(\x0cR\trawHandle\x12\x1b\n\tdevice_id\x18\x03 \x01(\x03R\x08deviceId\x12\x1b\n\tbyte_size\x18\x04 '
    b'\x01(\x04R\x08byteSize""\n CudaSharedMemoryRegisterResponse"7\n!CudaSharedM'
    b'emoryUnregisterRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name"$\n"CudaSharedMemoryUn'
    b'registerResponse"\x8e\x02\n\x13TraceSettingRequest\x12H\n\x08settings\x18\x01 \x03(\x0b2,.inf'
    b'erence.TraceSettingRequest.SettingsEntryR\x08settings\x12\x1d\n\nmodel_name'
    b'\x18\x02 \x01(\tR\tmodelName\x1a$\n\x0cSettingValue\x12\x14\n\x05value\x18\x01 \x03(\tR\x05value\x1ah\n\rSetti'
    b'ngsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12A\n\x05value\x18\x02 \x01(\x0b2+.inference.TraceSetti'
    b'ngRequest.SettingValueR\x05value:\x028\x01"\xf2\x01\n\x14TraceSettingResponse\x12I\n\x08se'
    b'ttings\x18\x01 \x03(\x0b2-.inference.TraceSettingResponse.SettingsEntryR\x08set'
    b'tings\x1a$\n\x0cSettingValue\x12\x14\n\x05value\x18\x01 \x03(\tR\x05value\x1ai\n\rSettingsEntry\x12\x10\n\x03'
    b'key\x18\x01 \x01(\tR\x03key\x12B\n\x05value\x18\x02 \x01(\x0b2,.inference.TraceSettingResponse.S'
    b'ettingValueR\x05value:\x028\x01"\xd6\x02\n\x12LogSettingsRequest\x12G\n\x08settings\x18\x01 \x03(\x0b2'
    b'+.inference.LogSettingsRequest.SettingsEntryR\x08settings\x1a\x8d\x01\n\x0cSetti'
    b'ngValue\x12\x1f\n\nbool_param\x18\x01 \x01(\x08H\x00R\tboolParam\x12#\n\x0cuint32_param\x18\x02 \x01(\rH\x00'
    b'R\x0buint32Param\x12#\n\x0cstring_param\x18\x03 \x01(\tH\x00R\x0bstringParamB\x12\n\x10parameter_'
    b'choice\x1ag\n\rSettingsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12@\n\x05value\x18\x02 \x01(\x0b2*.infer'
    b'ence.LogSettingsRequest.SettingValueR\x05value:\x028\x01"\xd9\x02\n\x13LogSettingsR'
    b'esponse\x12H\n\x08settings\x18\x01 \x03(\x0b2,.inference.LogSettingsResponse.Settin'
    b'gsEntryR\x08settings\x1a\x8d\x01\n\x0cSettingValue\x12\x1f\n\nbool_param\x18\x01 \x01(\x08H\x00R\tboolPa'
    b'ram\x12#\n\x0cuint32_param\x18\x02 \x01(\rH\x00R\x0buint32Param\x12#\n\x0cstring_param\x18\x03 \x01(\tH\x00'
    b'R\x0bstringParamB\x12\n\x10parameter_choice\x1ah\n\rSettingsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR'
    b'\x03key\x12A\n\x05value\x18\x02 \x01(\x0b2+.inference.LogSettingsResponse.SettingValue'
    b'R\x05value:\x028\x012\x8e\x0f\n\x14GRPCInferenceService\x12I\n\nServerLive\x12\x1c.inference.S'
    b'erverLiveRequest\x1a\x1d.inference.ServerLiveResponse\x12L\n\x0bServerReady\x12\x1d'
    b'.inference.ServerReadyRequest\x1a\x1e.inference.ServerReadyResponse\x12I\n'
    b'\nModelReady\x12\x1c.inference.ModelReadyRequest\x1a\x1d.inference.ModelReady'
    b'Response\x12U\n\x0eServerMetadata\x12 .inference.ServerMetadataRequest\x1a!.i'
    b'nference.ServerMetadataResponse\x12R\n\rModelMetadata\x12\x1f.inference.Mod'
    b'elMetadataRequest\x1a .inference.ModelMetadataResponse\x12I\n\nModelInfe'
    b'r\x12\x1c.inference.ModelInferRequest\x1a\x1d.inference.ModelInferResponse\x12Y'
    b'\n\x10ModelStreamInfer\x12\x1c.inference.ModelInferRequest\x1a#.inference.Mod'
    b'elStreamInferResponse(\x010\x01\x12L\n\x0bModelConfig\x12\x1d.inference.ModelConfig'
    b'Request\x1a\x1e.inference.ModelConfigResponse\x12X\n\x0fModelStatistics\x12!.inf'
    b'erence.ModelStatisticsRequest\x1a".inference.ModelStatisticsRespons'
    b'e\x12X\n\x0fRepositoryIndex\x12!.inference.RepositoryIndexRequest\x1a".infere'
    b'nce.RepositoryIndexResponse\x12d\n\x13RepositoryModelLoad\x12%.inference.R'
    b'epositoryModelLoadRequest\x1a&.inference.RepositoryModelLoadRespons'
    b"e\x12j\n\x15RepositoryModelUnload\x12'.inference.RepositoryModelUnloadRequ"
    b'est\x1a(.inference.RepositoryModelUnloadResponse\x12s\n\x18SystemSharedMem'
    b'oryStatus\x12*.inference.SystemSharedMemoryStatusRequest\x1a+.inferenc'
    b'e.SystemSharedMemoryStatusResponse\x12y\n\x1aSystemSharedMemoryRegister'
    b'\x12,.inference.SystemSharedMemoryRegisterRequest\x1a-.inference.Syste'
    b'mSharedMemoryRegisterResponse\x12\x7f\n\x1cSystemSharedMemoryUnregister\x12..'
    b'inference.SystemSharedMemoryUnregisterRequest\x1a/.inference.System'
    b'SharedMemoryUnregisterResponse\x12m\n\x16CudaSharedMemoryStatus\x12(.infer'
    b'ence.CudaSharedMemoryStatusRequest\x1a).inference.CudaSharedMemoryS'
    b'tatusResponse\x12s\n\x18CudaSharedMemoryRegister\x12*.inference.CudaShared'
    b'MemoryRegisterRequest\x1a+.inference.CudaSharedMemoryRegisterRespon'
    b'se\x12y\n\x1aCudaSharedMemoryUnregister\x12,.inference.CudaSharedMemoryUnr'
    b'egisterRequest\x1a-.inference.CudaSharedMemoryUnregisterResponse\x12O\n'
    b'\x0cTraceSetting\x12\x1e.inference.TraceSettingRequest\x1a\x1f.inference.TraceS'
    b'ettingResponse\x12L\n\x0bLogSettings\x12\x1d.inference.LogSettingsRequest\x1a\x1e.i'
    b'nference.LogSettingsResponseb\x06proto3'
)

POOL.AddSerializedFile(DESCRIPTOR_BYTES)

ServerLiveRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ServerLiveRequest")
)

ServerLiveResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ServerLiveResponse")
)

ServerReadyRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ServerReadyRequest")
)

ServerReadyResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ServerReadyResponse")
)

ModelReadyRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelReadyRequest")
)

ModelReadyResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelReadyResponse")
)

ServerMetadataRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ServerMetadataRequest")
)

ServerMetadataResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ServerMetadataResponse")
)

ModelMetadataRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelMetadataRequest")
)

ModelMetadataResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelMetadataResponse")
)

InferParameter: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.InferParameter")
)

InferTensorContents: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.InferTensorContents")
)

ModelInferRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelInferRequest")
)

ModelInferResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelInferResponse")
)

ModelStreamInferResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelStreamInferResponse")
)

ModelConfigRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelConfigRequest")
)

ModelConfigResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelConfigResponse")
)

ModelStatisticsRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelStatisticsRequest")
)

StatisticDuration: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.StatisticDuration")
)

InferStatistics: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.InferStatistics")
)

InferResponseStatistics: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.InferResponseStatistics")
)

InferBatchStatistics: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.InferBatchStatistics")
)

MemoryUsage: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.MemoryUsage")
)

ModelStatistics: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelStatistics")
)

ModelStatisticsResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelStatisticsResponse")
)

ModelRepositoryParameter: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.ModelRepositoryParameter")
)

RepositoryIndexRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.RepositoryIndexRequest")
)

RepositoryIndexResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.RepositoryIndexResponse")
)

RepositoryModelLoadRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.RepositoryModelLoadRequest")
)

RepositoryModelLoadResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.RepositoryModelLoadResponse")
)

RepositoryModelUnloadRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.RepositoryModelUnloadRequest")
)

RepositoryModelUnloadResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.RepositoryModelUnloadResponse")
)

SystemSharedMemoryStatusRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.SystemSharedMemoryStatusRequest")
)

SystemSharedMemoryStatusResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.SystemSharedMemoryStatusResponse")
)

SystemSharedMemoryRegisterRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.SystemSharedMemoryRegisterRequest")
)

SystemSharedMemoryRegisterResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.SystemSharedMemoryRegisterResponse")
)

SystemSharedMemoryUnregisterRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.SystemSharedMemoryUnregisterRequest")
)

SystemSharedMemoryUnregisterResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.SystemSharedMemoryUnregisterResponse")
)

CudaSharedMemoryStatusRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.CudaSharedMemoryStatusRequest")
)

CudaSharedMemoryStatusResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.CudaSharedMemoryStatusResponse")
)

CudaSharedMemoryRegisterRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.CudaSharedMemoryRegisterRequest")
)

CudaSharedMemoryRegisterResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.CudaSharedMemoryRegisterResponse")
)

CudaSharedMemoryUnregisterRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.CudaSharedMemoryUnregisterRequest")
)

CudaSharedMemoryUnregisterResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.CudaSharedMemoryUnregisterResponse")
)

TraceSettingRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.TraceSettingRequest")
)

TraceSettingResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.TraceSettingResponse")
)

LogSettingsRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.LogSettingsRequest")
)

LogSettingsResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("inference.LogSettingsResponse")
)
