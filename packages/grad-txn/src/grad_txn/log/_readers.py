"""How the value of a line's field is read back, by the field's type.

A reader returns the value checked, or raises TypeError or ValueError.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Reader = Callable[[Any], Any]


def _only(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:  # not isinstance, to which True is an int
            raise TypeError
        return value

    return read


def _float(value: Any) -> float:
    if type(value) not in (int, float) and value not in ("nan", "inf", "-inf"):
        raise TypeError
    return float(value)


def _list_of(read: Reader) -> Reader:
    return lambda value: tuple(map(read, _only(list)(value)))


def _by_replica(read: Reader) -> Reader:
    return lambda value: {int(key): read(one) for key, one in _only(dict)(value).items()}


def _or_none(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


READERS: Mapping[Any, Reader] = {
    int: _only(int),
    int | None: _or_none(_only(int)),
    float: _float,
    bool: _only(bool),
    str: _only(str),
    Sequence[int]: _list_of(_only(int)),
    Sequence[float]: _list_of(_float),
    Sequence[Sequence[int]]: _list_of(_list_of(_only(int))),
    Mapping[int, int]: _by_replica(_only(int)),
    Mapping[int, str]: _by_replica(_only(str)),
    Mapping[int, Sequence[int]]: _by_replica(_list_of(_only(int))),
}
"""The type of a field -> what reads its value back."""
