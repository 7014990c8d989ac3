"""Changes the class of a vLLM object to a subclass, for objects that vLLM has made and passed on before it calls us."""

from typing import Any


def become(instance: Any, subclass: type) -> None:
    """Change an object's class in place; its attributes stay.

    Args:
        instance: One of vLLM's objects.
        subclass: Its new class, a direct subclass of its current one.

    Raises:
        TypeError: when it extends another class, so that methods of the object's own class would be lost.
    """
    if type(instance) not in subclass.__bases__:
        raise TypeError(
            f"{subclass.__qualname__}: does not extend {type(instance).__qualname__}, the class of the object"
        )
    instance.__class__ = subclass
