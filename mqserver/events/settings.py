"""How much the event channels of a node hold, and how long they wait for others; pure."""

from __future__ import annotations

from dataclasses import dataclass

KIBIBYTE = 1024


@dataclass(frozen=True)
class EventSettings:
    """Limits and times of the channels. Those who exceed a limit are told; nobody else suffers."""

    # What one consumer is still to hear; one that falls behind further is told to look.
    events_max: int = 1000
    # What was there before is read in pages, of so many messages or about so many bytes.
    page_max: int = 1000
    page_bytes: int = 1024 * KIBIBYTE
    # Messages that have arrived and were not yet handed to the consumers.
    inbox_max: int = 100_000
    # What an application pushes into a channel.
    event_bytes_max: int = 16 * KIBIBYTE

    channels_max: int = 1000
    channels_per_principal_max: int = 100
    subscriptions_per_channel_max: int = 1000
    ends_per_channel_max: int = 1000
    ends_per_principal_max: int = 200

    # A pull waits so long; whoever waits less on the other side may lose an event.
    pull_wait_s: float = 20.0
    # Who pulls or connects no more is dropped. Who is pushed to is told to look: does it live?
    silent_s: float = 300.0
    supplier_silent_s: float = 3600.0
    sweep_s: float = 30.0
    # Where other nodes write to the same storage, consumers are told to look in this interval.
    shared_look_s: float = 2.0

    # A call to a consumer, and how often and after which pauses it is repeated.
    push_timeout_s: float = 2.0
    push_attempts: int = 5
    retry_first_s: float = 0.5
    retry_longest_s: float = 10.0
    # One that takes longer shares its threads with the slow only.
    slow_s: float = 0.25
    # Pauses between two questions to a pull supplier that has nothing.
    poll_first_s: float = 0.5
    poll_longest_s: float = 5.0
    # Threads for those who are quick, and as many for those who are not.
    pushers: int = 4
    close_s: float = 5.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            assert value > 0, f"{name} is a number above 0, not {value}"
