"""Stands in for NVIDIA's driver: it knows what is page-locked, and complains as the driver does."""

import threading

INVALID_VALUE, OUT_OF_MEMORY, ALREADY_LOCKED, NOT_LOCKED, NO_CONTEXT = 1, 2, 712, 713, 201


class FakeCuda:
    """The functions of libcuda that `CudaDriver` calls.

    Attributes:
        locked: The sizes of locked memory, by address.
        num_locks: How often memory was locked.
        limit: How many bytes may be locked.
        num_waits: How often somebody has waited for transfers.
    """

    def __init__(self, limit=1 << 40):
        self.locked, self.num_locks, self.limit, self.num_waits = {}, 0, limit, 0
        self._thread = threading.local()

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, number):
        device._obj.value = number
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 77
        return 0

    def cuCtxPushCurrent_v2(self, context):
        assert context.value == 77
        self._thread.contexts = [*getattr(self._thread, "contexts", []), context.value]
        return 0

    def cuCtxPopCurrent_v2(self, context):
        context._obj.value = self._thread.contexts.pop()
        return 0

    def cuCtxSynchronize(self):
        self.num_waits += 1
        return 0

    def cuMemHostRegister_v2(self, address, size, flags):
        if not getattr(self._thread, "contexts", []):
            return NO_CONTEXT
        first, last = address.value, address.value + size.value
        if any(first < start + length and start < last for start, length in self.locked.items()):
            return ALREADY_LOCKED
        if sum(self.locked.values()) + size.value > self.limit:
            return OUT_OF_MEMORY
        self.locked[first] = size.value
        self.num_locks += 1
        return 0

    def cuMemHostUnregister(self, address):
        if not getattr(self._thread, "contexts", []):
            return NO_CONTEXT
        return 0 if self.locked.pop(address.value, None) else NOT_LOCKED

    def cuGetErrorName(self, status, name):
        names = {OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY", NOT_LOCKED: b"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"}
        name._obj.value = names.get(status, b"CUDA_ERROR_UNKNOWN")
        return 0

    def holds(self, array):
        """Whether all of an array is locked."""
        first = array.__array_interface__["data"][0]
        return any(start <= first and first + array.nbytes <= start + n for start, n in self.locked.items())
