"""What a server says of itself in numbers, and how that is written down."""

from __future__ import annotations

import threading

from idl.exposition import Exposition
from idl.measures import Durations, Spread, counter, counters, durations, gauge, gauges


def test_durations_are_counted_up_to_each_bound_that_they_do_not_exceed() -> None:
    syncs = Durations((0.001, 0.01))
    for duration_s in (0.001, 0.002, 0.5):
        syncs.note(duration_s)
    assert syncs.spread() == Spread(((0.001, 1), (0.01, 2)), 3, 0.503)


def test_durations_of_many_threads_are_all_counted() -> None:
    syncs = Durations()

    def note_many() -> None:
        for _ in range(500):
            syncs.note(0.001)

    threads = [threading.Thread(target=note_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert syncs.spread().count == 2000


def test_every_kind_of_measure_is_written_as_prometheus_reads_it() -> None:
    measures = [
        counter("oncemq_puts_total", "Puts.", 3),
        gauge("oncemq_queues", "Queues.", 2),
        gauges("oncemq_depth", "Depth.", "queue", {'a"b\n': 7}),
        durations("oncemq_sync_seconds", "Syncs.", Spread(((0.5, 1),), 2, 1.5)),
        counters("oncemq_ends_total", "Ends.", "how", {"committed": 1}),
    ]
    lines = Exposition(lambda: measures).text().decode().splitlines()
    assert "# TYPE oncemq_puts_total counter" in lines
    assert "oncemq_puts_total 3.0" in lines
    assert "# TYPE oncemq_queues gauge" in lines
    # What a label says cannot begin a line of its own.
    assert r'oncemq_depth{queue="a\"b\n"} 7.0' in lines
    assert 'oncemq_sync_seconds_bucket{le="0.5"} 1.0' in lines
    assert 'oncemq_sync_seconds_bucket{le="+Inf"} 2.0' in lines
    assert "oncemq_sync_seconds_sum 1.5" in lines
    assert 'oncemq_ends_total{how="committed"} 1.0' in lines


def test_the_process_itself_is_measured() -> None:
    assert b"process_resident_memory_bytes" in Exposition(lambda: ()).text()


def test_values_are_those_of_the_moment_at_which_they_are_asked_for() -> None:
    values = iter((1.0, 2.0))
    exposition = Exposition(lambda: [gauge("oncemq_now", "Now.", next(values))])
    assert b"oncemq_now 1.0" in exposition.text()
    assert b"oncemq_now 2.0" in exposition.text()
