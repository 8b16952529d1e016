"""The standard exceptions of CORBA: what may come out of any call, and was the call carried out?

IDL never lists them. `completed` answers the question that matters most after a failure: NO means
that nothing was done and the call may be made again, MAYBE that only the other side knows. This
module knows no transport; `marshal.py` carries these classes and the orbs raise them.
"""

from __future__ import annotations

import enum


class Completion(enum.Enum):
    """Whether the operation had been carried out when the exception arose."""

    YES = 0
    NO = 1
    MAYBE = 2


class SystemException(Exception):
    """A standard exception: the reason in words, and whether the call was carried out."""

    def __init__(self, reason: str = "", completed: Completion = Completion.NO) -> None:
        super().__init__(reason, completed)
        self.reason = reason
        self.completed = completed

    def __str__(self) -> str:
        return f"{self.reason or type(self).__doc__} [{_COMPLETION_TEXT[self.completed]}]"


_COMPLETION_TEXT = {
    Completion.YES: "the call was carried out",
    Completion.NO: "the call was not carried out",
    Completion.MAYBE: "the call may have been carried out",
}


class BAD_PARAM(SystemException):
    """An argument is not what the interface says."""


class BAD_OPERATION(SystemException):
    """The object has no such operation."""


class COMM_FAILURE(SystemException):
    """The connection was lost."""


class IMP_LIMIT(SystemException):
    """A limit was exceeded."""


class INTERNAL(SystemException):
    """The server failed; its log has the details."""


class INVALID_TRANSACTION(SystemException):
    """The transaction is not valid here, or not in a state that allows the call."""


class MARSHAL(SystemException):
    """A message could not be read: its digest or its form is wrong."""


class NO_IMPLEMENT(SystemException):
    """The operation exists, but is not implemented by this object."""


class NO_PERMISSION(SystemException):
    """Not allowed."""


class OBJECT_NOT_EXIST(SystemException):
    """There is no such object, or there is none any more."""


class TIMEOUT(SystemException):
    """No answer came in time."""


class TRANSACTION_MODE(SystemException):
    """The object takes part in transactions in another way than the call asks for."""


class TRANSACTION_REQUIRED(SystemException):
    """The call needs a transaction, and came without one."""


class TRANSACTION_ROLLEDBACK(SystemException):
    """The transaction was rolled back, or can only be rolled back."""


class TRANSACTION_UNAVAILABLE(SystemException):
    """The transaction service cannot be reached."""


class TRANSIENT(SystemException):
    """The server cannot be reached now, or is too busy; try again."""


class UNKNOWN(SystemException):
    """The server failed in a way that the interface does not name; its log has the details."""


class WRONG_TRANSACTION(SystemException):
    """The call belongs to another transaction than the one it came in."""
