"""The network: publishing servants and calling those of others over Pyro5. The one door to it.

Frames, message types and URIs are Pyro5's. What Pyro5 does around them is not safe to expose, and
is done here instead (`docs/decisions/0003-a-guarded-orb.md`):

1. Accepting never reads. A peer's TLS and login run in a thread of their own under one deadline.
2. A frame is judged by its header, before anything else of it is looked at: type, serializer,
   flags, sizes. No more than a small read-ahead is held until then.
3. Nothing that arrives can name a class; only operations of a published interface can be called.
4. Every frame carries a digest of its body and the caller's request id, and follows the one before.
5. What belongs to one call never reaches another: there is no state between two requests.
6. An exception gets out as the contract declares it, never with a traceback.
"""

from idl.orb.guard import Limits
from idl.orb.network import NetworkOrb

__all__ = ["Limits", "NetworkOrb"]
