"""A bfloat16 array for programs without torch: 16-bit words that offer DLPack."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

_BFLOAT = 4
_CPU = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class BFloat16:
    """One dimension of bfloat16, seen as `words` by numpy."""

    def __init__(self, values: npt.ArrayLike) -> None:
        self.words = words_of(np.asarray(values, np.float32))
        self._shape = (ctypes.c_int64 * 1)(self.words.size)
        data = ctypes.c_void_p(self.words.ctypes.data)
        self._managed = _Managed(_Tensor(data, _CPU, 0, 1, _BFLOAT, 16, 1, self._shape, None, 0))

    @property
    def values(self) -> npt.NDArray[np.float32]:
        return (self.words.astype(np.uint32) << 16).view(np.float32)

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


def words_of(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to bfloat16, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.ascontiguousarray(rounded.astype(np.uint16))
