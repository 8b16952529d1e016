"""Mistakes that could be made in the paged storage, each planted alone, and who finds it.

A plant says in its docstring what is wrong. The hunt that finds it is a kind of case from
`paged_cases.py` or `paged_damage.py`, on a scenario. A few mistakes do no harm, because something
else stands behind: they are in `REDUNDANT`, with the reason, and where there is one with a partner,
a second mistake with which the first is found.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.crash import planted_checks, planted_order, planted_restarts, planted_syncs
from tests.crash.planting import Plant


@dataclass(frozen=True)
class Mutant:
    """A mistake, and the hunt that finds it."""

    plant: Plant
    hunt: str
    scenario: str

    @property
    def what(self) -> str:
        """What is wrong."""
        return _told(self.plant)


@dataclass(frozen=True)
class Redundant:
    """A mistake that does no harm: why, where that was tried, and with which other one it does."""

    plant: Plant
    reason: str
    hunt: str
    scenario: str
    partner: Plant | None = None

    @property
    def what(self) -> str:
        """What is wrong."""
        return _told(self.plant)


def _told(plant: Plant) -> str:
    assert plant.__doc__
    return plant.__doc__.rstrip(".")


# fmt: off
MUTANTS = [
    Mutant(planted_syncs.acknowledge_early, "crash", "small_puts"),
    Mutant(planted_syncs.no_sync_of_the_log, "crash", "small_puts"),
    Mutant(planted_syncs.sync_before_the_write, "crash", "small_puts"),
    Mutant(planted_syncs.sync_of_the_last_segment_only, "crash", "segments"),
    Mutant(planted_syncs.what_came_during_a_sync_is_taken_for_synced, "crash", "in_flight"),
    Mutant(planted_restarts.a_vote_before_its_record, "crash", "prepare_and_decide"),
    Mutant(planted_restarts.a_decision_before_its_record, "crash", "prepare_and_decide"),
    Mutant(planted_restarts.a_repeated_commit_is_not_forced, "crash", "prepare_and_decide"),
    Mutant(planted_syncs.close_without_a_force, "crash", "closing"),
    Mutant(planted_syncs.no_sync_of_the_data, "crash", "large_puts"),
    Mutant(planted_order.a_record_before_its_pages, "crash", "large_puts"),
    Mutant(planted_order.a_record_before_its_parcels, "crash", "parcels"),
    Mutant(planted_order.free_parcels_before_the_rollback_is_on_disk, "crash", "parcels"),
    Mutant(planted_order.parcels_stay_in_the_log, "crash", "parcels_in_the_log"),
    Mutant(planted_order.parcels_in_doubt_stay_in_the_log, "crash", "parcels_in_the_log"),
    Mutant(planted_order.parcels_in_doubt_are_taken_for_committed,
           "crash", "parcels_in_the_log"),
    Mutant(planted_syncs.no_sync_of_the_control_record, "crash", "small_puts"),
    Mutant(planted_syncs.no_sync_of_the_first_control_record, "crash", "creation"),
    Mutant(planted_syncs.no_sync_of_a_new_segment, "crash", "creation"),
    Mutant(planted_syncs.no_sync_of_names, "crash", "creation"),
    Mutant(planted_syncs.no_sync_of_a_new_name, "crash", "segments"),
    Mutant(planted_syncs.no_sync_of_a_recycled_name, "crash", "segments"),
    Mutant(planted_syncs.retry_a_failed_sync, "EIO once", "small_puts"),
    Mutant(planted_syncs.ignore_a_short_write, "a short write", "large_puts"),
    Mutant(planted_syncs.go_on_after_a_failure, "EIO once", "small_puts"),
    Mutant(planted_syncs.go_on_after_a_failed_sync_of_names, "EIO once", "segments"),
    Mutant(planted_order.free_before_the_control_record, "ENOSPC once", "reused_pages"),
    Mutant(planted_checks.no_checksum_of_blocks, "damage", "small_puts"),
    Mutant(planted_checks.no_checksum_of_pages, "damage", "moving"),
    Mutant(planted_checks.no_digests_of_undivided_runs, "damage", "reused_pages"),
    Mutant(planted_checks.no_checksum_of_the_control_record, "damage", "segments"),
    Mutant(planted_checks.no_identity_in_checksums, "damage", "reading"),
    Mutant(planted_checks.no_numbers_of_blocks, "crash", "segments"),
    Mutant(planted_checks.no_look_behind_the_end, "lost blocks", "small_puts"),
    Mutant(planted_checks.no_look_at_the_end_of_an_orderly_close,
           "lost blocks of a closed store", "small_puts"),
    Mutant(planted_checks.no_new_epoch, "crash", "small_puts"),
    Mutant(planted_checks.no_epochs_of_blocks, "crash", "small_puts"),
    Mutant(planted_checks.one_slot_only, "crash", "small_puts"),
    Mutant(planted_checks.forget_the_log_first, "crash", "segments"),
    Mutant(planted_order.free_and_cut_before_the_control_record, "crash", "shrinking"),
    Mutant(planted_checks.keys_are_not_reserved, "crash", "large_puts"),
    Mutant(planted_checks.a_checkpoint_forgets_reserved_keys, "crash", "segments"),
    Mutant(planted_order.forget_prepared_branches, "crash", "doubt_across_checkpoints"),
    Mutant(planted_order.what_is_in_doubt_is_taken_for_committed, "crash", "carried"),
    Mutant(planted_order.what_was_committed_stays_in_doubt, "crash", "carried"),
    Mutant(planted_order.free_what_a_carried_branch_refers_to, "crash", "carried"),
    Mutant(planted_order.forget_the_end_of_a_carried_branch, "crash", "carried"),
    Mutant(planted_order.forget_branches_in_flight, "crash", "in_flight"),
    Mutant(planted_order.leave_messages_in_the_log, "crash", "moving"),
    Mutant(planted_order.lose_sight_of_messages_in_the_log, "crash", "doubt_across_checkpoints"),
    Mutant(planted_restarts.keys_taken_for_a_range, "crash", "interleaved"),
    Mutant(planted_order.no_data_sync_in_a_checkpoint, "crash", "moving"),
    Mutant(planted_order.a_checkpoint_is_named_before_it_is_forced, "crash", "moving"),
    Mutant(planted_order.free_what_a_checkpoint_refers_to, "crash", "reused_pages"),
    Mutant(planted_order.free_before_the_end_is_on_disk, "crash", "reused_pages"),
    Mutant(planted_restarts.trust_what_the_kernel_shows, "kill", "segments"),
    Mutant(planted_restarts.sync_what_the_kernel_shows, "failed sync", "small_puts"),
    Mutant(planted_restarts.trust_the_control_record_that_is_shown, "failed sync", "segments"),
    Mutant(planted_restarts.trust_the_names_that_are_shown, "kill", "creation"),
    Mutant(planted_restarts.trust_the_size_that_is_shown, "failed sync", "large_puts"),
    Mutant(planted_restarts.tidy_up_before_all_is_safe, "kill", "segments"),
    Mutant(planted_restarts.prepared_branches_hold_nothing, "crash", "prepare_and_decide"),
    Mutant(planted_restarts.reservations_hold_nothing, "crash", "reservations"),
    Mutant(planted_restarts.old_records_are_taken_for_new, "crash", "renewed_queue"),
    Mutant(planted_restarts.rollback_leaves_no_record, "crash", "lazy_ends"),
]

REDUNDANT = [
    Redundant(planted_checks.no_checksum_of_records,
              "every block that a record is made of has a checksum of its own",
              "damage", "segments"),
    Redundant(planted_checks.no_checksum_of_undivided_runs,
              "a payload in a run of its own has its digest besides",
              "damage", "reused_pages"),
    Redundant(planted_checks.one_slot_and_no_other,
              "a slot is smaller than a sector, which a disk writes as a whole",
              "crash", "moving"),
    Redundant(planted_checks.no_look_at_the_size_of_the_data_file,
              "a page that is cut off is found when it is read",
              "damage", "moving", partner=planted_checks.no_checksum_of_pages),
]
# fmt: on
