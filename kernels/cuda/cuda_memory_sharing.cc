#include "kernels/cuda/cuda_memory_sharing.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_stream.h"

namespace gdpcache::kernels::cuda {
namespace {

/// A failed call would be reported once more, by the next launch of this thread.
void ForgetError() { cudaGetLastError(); }

/// What a handle of another process came to: a wrong one is its sender's mistake, whatever CUDA calls it. (A lost
/// device shows at the next launch.)
absl::Status HandleStatus(cudaError_t error, absl::string_view what) {
  ForgetError();
  const absl::Status status = ToStatus(error, what);
  if (absl::IsResourceExhausted(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat("handle: ", status.message()));
}

using AddressRange = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);

using StreamWriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

/// A function of the driver; nullptr without a driver that has it.
template <typename Function>
Function FindFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    ForgetError();
    return nullptr;
  }
  return reinterpret_cast<Function>(function);
}

}  // namespace

absl::Status CudaMemorySharing::Pin(void* data, std::size_t size) {
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
  const cudaError_t error = cudaHostRegister(data, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error == cudaSuccess) return absl::OkStatus();
  ForgetError();
  return ToStatus(error, absl::StrCat("pinning ", size, " bytes of shared memory"));
}

void CudaMemorySharing::Unpin(void* data) noexcept {
  cudaSetDevice(device_);
  if (cudaHostUnregister(data) != cudaSuccess) ForgetError();
}

absl::StatusOr<MemorySharing::DeviceMemory> CudaMemorySharing::OpenMemory(absl::string_view handle) {
  static const auto kAddressRange = FindFunction<AddressRange>("cuMemGetAddressRange");
  if (kAddressRange == nullptr) return absl::UnimplementedError("the driver does not tell how large memory is");
  cudaIpcMemHandle_t ipc;
  if (handle.size() != sizeof(ipc)) return absl::InvalidArgumentError("handle: is of the wrong size");
  std::memcpy(&ipc, handle.data(), sizeof(ipc));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
  DeviceMemory memory;
  if (const cudaError_t error = cudaIpcOpenMemHandle(&memory.data, ipc, cudaIpcMemLazyEnablePeerAccess);
      error != cudaSuccess) {
    return HandleStatus(error, "cannot open the memory");
  }
  cudaPointerAttributes attributes = {};
  CUdeviceptr base = 0;
  if (cudaPointerGetAttributes(&attributes, memory.data) != cudaSuccess || attributes.device != device_ ||
      kAddressRange(&base, &memory.size, reinterpret_cast<CUdeviceptr>(memory.data)) != CUDA_SUCCESS ||
      base != reinterpret_cast<CUdeviceptr>(memory.data)) {
    ForgetError();
    CloseMemory(memory.data);
    return absl::InvalidArgumentError(
        absl::StrCat("handle: the memory is on another device, not on ", device_uuid_, ", or is no allocation"));
  }
  return memory;
}

void CudaMemorySharing::CloseMemory(void* data) noexcept {
  cudaSetDevice(device_);
  if (cudaIpcCloseMemHandle(data) != cudaSuccess) ForgetError();
}

absl::StatusOr<void*> CudaMemorySharing::OpenEvent(absl::string_view handle) {
  cudaIpcEventHandle_t ipc;
  if (handle.size() != sizeof(ipc)) return absl::InvalidArgumentError("handle: is of the wrong size");
  std::memcpy(&ipc, handle.data(), sizeof(ipc));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
  cudaEvent_t event = nullptr;
  if (const cudaError_t error = cudaIpcOpenEventHandle(&event, ipc); error != cudaSuccess) {
    return HandleStatus(error, "cannot open the event");
  }
  return event;
}

void CudaMemorySharing::CloseEvent(void* event) noexcept {
  cudaSetDevice(device_);
  if (cudaEventDestroy(static_cast<cudaEvent_t>(event)) != cudaSuccess) ForgetError();
}

bool CudaMemorySharing::HasHappened(void* event) {
  cudaError_t error = cudaSetDevice(device_);
  if (error == cudaSuccess) error = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (error == cudaSuccess) return true;
  ForgetError();
  return error != cudaErrorNotReady;
}

absl::Status CudaMemorySharing::RecordEvent(void* event, Stream& stream) {
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
  GDPCACHE_RETURN_IF_CUDA_ERROR(
      cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<CudaStream&>(stream).get()));
  return absl::OkStatus();
}

absl::Status CudaMemorySharing::WriteValue(std::uint32_t* word, std::uint32_t value, Stream& stream) {
  static const auto kWriteValue = FindFunction<StreamWriteValue>("cuStreamWriteValue32");
  if (kWriteValue == nullptr) return absl::UnimplementedError("the driver's streams write no values");
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
  cudaPointerAttributes attributes = {};
  if (const cudaError_t error = cudaPointerGetAttributes(&attributes, word);
      error != cudaSuccess || attributes.devicePointer == nullptr) {
    ForgetError();
    return absl::InvalidArgumentError("the word is out of the device's reach");
  }
  // By default the write comes behind a fence for the whole system.
  if (const CUresult result =
          kWriteValue(static_cast<CudaStream&>(stream).get(), reinterpret_cast<CUdeviceptr>(attributes.devicePointer),
                      value, CU_STREAM_WRITE_VALUE_DEFAULT);
      result != CUDA_SUCCESS) {
    return absl::UnimplementedError(absl::StrCat("CUDA: cuStreamWriteValue32 failed with ", static_cast<int>(result)));
  }
  return absl::OkStatus();
}

std::string FormatUuid(const char (&bytes)[16]) {
  const std::string digits = absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
  return absl::StrCat("GPU-", digits.substr(0, 8), "-", digits.substr(8, 4), "-", digits.substr(12, 4), "-",
                      digits.substr(16, 4), "-", digits.substr(20));
}

}  // namespace gdpcache::kernels::cuda
