"""The event channels of a node: who hears of what arrives in its queues, and of what others push.

`feed` is what one consumer is still to hear, and pure. `switchboard` knows the channels and their
ends, `delivery` pushes to those who want to be called, and `workers` are the threads for that. How
it all looks from outside is in `mqserver.interfaces.events`.
"""
