"""CUDA buffers through host staging, on the stand-in for libcuda. The last rank dies at the end."""

import ctypes
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from dlpack import _Managed, _Tensor, words_of

import ulfm_core
from ulfm_core.testing import say

if TYPE_CHECKING:
    from collections.abc import Callable

CUDA = 2
pointer, size_t = ctypes.c_void_p, ctypes.c_size_t
cuda = ctypes.CDLL(os.environ["ULFM_CORE_LIBCUDA"])
for name, result, arguments in (
    ("standin_allocate", pointer, (size_t, ctypes.c_int)),
    ("standin_shadow", pointer, (pointer,)),
    ("standin_stream", pointer, (ctypes.c_int,)),
    ("standin_kernel", None, (pointer, pointer, pointer, size_t, ctypes.c_int)),
    ("standin_order", None, (pointer, pointer)),
    ("standin_current", pointer, ()),
):
    function = getattr(cuda, name)
    function.restype, function.argtypes = result, arguments

Array = npt.NDArray[Any]


def calls(name: str) -> int:
    return int(cuda.standin_calls(name.encode()))


class DeviceArray:
    """An array on a device, written by a kernel that takes a while."""

    def __init__(self, values: Array, *, device: int = 0, queries: int = 20) -> None:
        self.dtype, self.shape, self.device = values.dtype, values.shape, device
        self.stream = cuda.standin_stream(device)
        self.address = cuda.standin_allocate(max(values.nbytes, 1), device)
        at = memoryview(
            (ctypes.c_char * values.nbytes).from_address(cuda.standin_shadow(self.address))
        )
        self.now = np.frombuffer(at, values.dtype)  # what is on the device at the moment
        self.write(values, queries)

    def write(self, values: Array, queries: int = 20) -> None:
        cuda.standin_kernel(self.stream, self.address, values.ctypes.data, values.nbytes, queries)


class ByInterface(DeviceArray):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.address, False),
            "typestr": self.dtype.str,
            "shape": self.shape,
            "version": 3,
            "stream": self.stream,
        }


class ByDlpack(DeviceArray):
    code = 2  # float

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(self, *, stream: int) -> Any:
        cuda.standin_order(self.stream, stream)
        self._shape = (ctypes.c_int64 * 1)(*self.shape)
        bits = 8 * self.dtype.itemsize
        at = pointer(self.address)
        self._managed = _Managed(
            _Tensor(at, CUDA, self.device, 1, self.code, bits, 1, self._shape, None, 0)
        )
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (pointer, ctypes.c_char_p, pointer)
        return new(ctypes.addressof(self._managed), b"dltensor", None)


class Bfloat(ByDlpack):
    code = 4


world = ulfm_core.init(wait_limit=60)
RANK, SIZE = world.rank, world.initial_size
TOTAL = sum(range(SIZE))


def full(count: int, dtype: str = "float32") -> Array:
    return np.full(count, RANK, dtype)


def reductions() -> None:
    for kind in (ByInterface, ByDlpack):
        for dtype in ("float64", "float32", "float16"):
            for count in (0, 1, 1000, 300_000):
                source = kind(full(count, dtype))
                target = kind(np.zeros(count, dtype))
                world.all_reduce(source, target).result()
                assert (target.now == TOTAL).all(), (kind, dtype, count)
                assert (source.now == RANK).all()
    integers = ByInterface(full(1000, "int32"), device=1)
    world.all_reduce(integers, op="max").result()
    assert (integers.now == SIZE - 1).all()
    brains = Bfloat(words_of(full(1000) + np.float32(0.5)))
    world.all_reduce(brains).result()
    assert (brains.now == words_of(np.full(1, TOTAL + SIZE / 2, "float32"))).all()
    # Across devices, and with a rank whose buffer is on the host: the messages are the same.
    mixed: Any = full(1000) if RANK == 0 else ByInterface(full(1000), device=RANK % 2)
    world.all_reduce(mixed).result()
    assert ((mixed if RANK == 0 else mixed.now) == TOTAL).all()
    subgroup = world.subgroup(range(SIZE - 1, -1, -1))
    some = ByDlpack(full(10))
    world.all_reduce(some, among=subgroup).result()
    assert (some.now == TOTAL).all()


def spares() -> None:
    copies = calls("cuMemcpyDtoH")
    array = ByInterface(full(5000))
    world.all_reduce(array, contribute=RANK != 1).result()
    assert (array.now == TOTAL - 1).all()
    assert calls("cuMemcpyDtoH") == copies + (RANK != 1)


def moves() -> None:
    array = ByDlpack(full(100_000))
    world.broadcast(array, root=1).result()
    assert (array.now == 1).all()
    gathered = ByDlpack(np.zeros(SIZE * 100, "float32"))
    world.all_gather(ByInterface(full(100)), gathered).result()
    assert (gathered.now.reshape(SIZE, 100) == np.arange(SIZE)[:, None]).all()


def order() -> bool:
    """An operation must wait for its own producer, and not for the one of the next operation."""
    first, second = ByDlpack(full(1000)), ByDlpack(full(1000), queries=-1)
    works = [world.all_reduce(first), world.all_reduce(second)]
    works[0].result()
    assert (first.now == TOTAL).all()
    waits = not works[1].done() and not works[1]._native.wait_for(0.05)
    cuda.standin_open_gate()
    works[1].result()
    assert (second.now == TOTAL).all()
    return waits


def reuse() -> int:
    before = calls("cuMemHostAlloc")
    for _ in range(3):
        world.all_reduce(ByInterface(full(300_000, "float64"))).result()
    return calls("cuMemHostAlloc") - before


def refusals() -> list[str]:
    class ReadOnly(ByInterface):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "data": (self.address, True)}

    class Strided(ByInterface):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "strides": (8,)}

    class Unknown(ByInterface):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "data": (64, False)}

    device, host = ByInterface(full(4)), full(4)
    cases: list[Callable[[], Any]] = [
        lambda: world.all_reduce(device, host),
        lambda: world.all_reduce(ReadOnly(full(4))),
        lambda: world.all_reduce(Strided(full(4))),
        lambda: world.all_reduce(Unknown(full(4))),
        lambda: world.all_reduce(ByDlpack(full(4), device=0), contribute=False, op="max"),
    ]
    said = []
    for case in cases:
        try:
            case()
        except (TypeError, ValueError, ulfm_core.UlfmError) as error:
            said.append(f"{type(error).__name__}: {error}")
    cuda.standin_fail(b"cuEventCreate")
    try:
        world.all_reduce(device)
    except ulfm_core.UlfmError as error:
        said.append(f"{type(error).__name__}: {error}")
    return said


def broken_copy() -> str:
    cuda.standin_fail(b"cuMemcpyDtoH")
    try:
        world.all_reduce(ByInterface(full(1000))).wait()
    except ulfm_core.UlfmError as error:
        said = str(error)
    else:
        said = ""
    assert not world.consensus(flag=False).passed
    return said


def death() -> None:
    array = ByInterface(full(300_000))
    world.all_reduce(array).result()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    array.write(full(300_000))
    outcome = world.all_reduce(array).wait()
    untouched = bool((array.now == RANK).all())
    assert not world.consensus(outcome is ulfm_core.Outcome.OK).passed
    world.all_reduce(array).result()
    say(outcome=outcome.name, untouched=untouched, after=float(array.now[0]))


context = cuda.standin_current()
reductions()
spares()
moves()
say(
    transport=world.device_transport,
    waits=order(),
    allocations=reuse(),
    context_kept=cuda.standin_current() == context,
    refusals=refusals(),
    broken=broken_copy(),
    events=calls("events alive"),
)
death()
