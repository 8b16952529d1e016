-------------------------- MODULE CarriedByADatabase --------------------------
(***************************************************************************)
(* A database carries: the row that commits a transaction there holds what *)
(* is put at one node. The node hears of it from the owner, who delivers,  *)
(* or finds the row itself and takes over. A mark in the same record of    *)
(* its log as the puts keeps it from putting twice, until the row is gone. *)
(* TLC checks the promises at the end of this file in every order of steps *)
(* and crashes. README.md beside it says what is left out, how big the     *)
(* checked models are, and which planted bugs are found.                   *)
(*                                                                         *)
(* How the world is drawn, where it differs from the other two:            *)
(*                                                                         *)
(* - The coordinator has no variable: it carries requests of the node and  *)
(*   of the owner to the database, and answers back. It or the database    *)
(*   being away is a step not taken, or a call given up.                   *)
(* - The owner may stop at any step, for ever, and what it asks for may    *)
(*   come again and late: a hold, the question that puts up a fence, and a *)
(*   deliver once it knows that the row is committed. Its rollback is what *)
(*   the node may do anyway at any moment: it gives up what it holds.      *)
(* - The log is what is forced, and behind it records that a killed        *)
(*   process leaves behind whole, and a power cut up to any of them.       *)
(* - A node holds a transaction's puts in branch n1, in memory; what it    *)
(*   takes over it puts in branch n2. It remembers for a while how either  *)
(*   ended; requests are not late by longer than that.                     *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Transactions,
    MaxCrashes,     \* How many there may be; a call that is given up counts, lest it fail for ever.
    Bug             \* The planted bug, or "none".

\* Each breaks one rule of the protocol, and TLC must find what comes of it.
Bugs == {
    "rows_dropped_before_the_force",
    "restart_drops_before_the_force",
    "marks_forgotten_before_rows_are_gone",
    "rows_not_durably_gone",
    "row_shown_before_it_is_durable",
    "pull_while_marks_are_forgotten",
    "late_answer_of_a_pull_used",
    "answer_of_a_pull_survives_restart",
    "mark_in_a_record_of_its_own",
    "delivered_without_mark",
    "taken_over_without_mark",
    "delivered_while_taken_over",
    "held_beyond_takeover",
    "rolled_back_after_takeover",
    "late_hold_revives_branch",
    "lost_connection_taken_for_rollback",
    "fence_after_looking",
    "node_not_asked_behind_a_fence",
    "one_branch_asked_for",
    "nothing_known_taken_for_rollback",
    "nobody_pulls",
    "nobody_drops"
}

Interchangeable == Permutations(Transactions)

ASSUME MaxCrashes \in Nat /\ Bug \in Bugs \cup {"none"}

VARIABLES
    \* The owner of each transaction.
    owner,          \* How far it is: see Owners.
    told,           \* Every answer that it was given and that counts.
    \* The database.
    request,        \* To insert the row and commit: see Requests.
    row,            \* What is there under the transaction's name.
    \* The node, in memory.
    n1,             \* The branch that holds the puts: see Branches.
    n2,             \* The branch by which it takes over.
    work,           \* What is under way for each: "deliver", "takeover".
    forgot,         \* Those of which the end of a branch is forgotten.
    thread,         \* Where its one thread for rows and marks is: see Phases.
    \* The node, on disk.
    disk,           \* What is forced: how often each was put, and the marks.
    tail,           \* The records behind that.
    \* The rest of the world.
    dropped,        \* Those of which the node has ever asked to drop the row.
    crashes,        \* How many there were.
    seen,           \* History, seen by nobody: those ever put, whatever a crash took back.
    left            \* What only bugs leave behind: see Left.

vars == <<owner, told, request, row, n1, n2, work, forgot, thread, disk, tail, dropped, crashes,
          seen, left>>
client == <<owner, told>>
database == <<request, row>>
branches == <<n1, n2, work, forgot>>
logged == <<disk, tail, seen>>

Owners == {
    "holding",      \* Hold went out.
    "ready",        \* Hold was answered: it has what belongs into the row.
    "committing",   \* The row went out, and commit with it.
    "asking",       \* It has lost the connection: it asks for the row or a fence.
    "fenced",       \* It has heard of a fence: it asks the node.
    "over"
}
Requests == {"none", "sent", "committed", "refused"}
Rows == {"none", "row", "fence"}
Branches == {"unknown", "held", "committed", "rolled_back"}
Phases == {"drop", "dropping", "pull", "pulled"}

\* To drop is to have the rows gone whose marks are on disk; to pull is to look for rows.
Thread(phase, those) == [phase |-> phase, those |-> those]

\* Of bugs: rows and marks that are dropped in the background, answers of pulls that were given up,
\* those where a fence is about to be put up, and how many records behind the disk a restart has
\* read.
Left == [dropping : SUBSET Transactions, answer : SUBSET Transactions, looked : SUBSET Transactions,
         read : 0..6]

Init ==
    /\ owner = [t \in Transactions |-> "holding"]
    /\ told = [t \in Transactions |-> {}]
    /\ request = [t \in Transactions |-> "none"]
    /\ row = [t \in Transactions |-> "none"]
    /\ n1 = [t \in Transactions |-> "unknown"]
    /\ n2 = [t \in Transactions |-> "unknown"]
    /\ work = [t \in Transactions |-> {}]
    /\ forgot = {}
    /\ thread = Thread("drop", {})
    /\ disk = [puts |-> [t \in Transactions |-> 0], marks |-> {}]
    /\ tail = <<>>
    /\ dropped = {}
    /\ crashes = 0
    /\ seen = {}
    /\ left = [dropping |-> {}, answer |-> {}, looked |-> {}, read |-> 0]

-----------------------------------------------------------------------------
(* The log. *)

Record(kind, those) == [kind |-> kind, of |-> those]

After(state, record) ==
    [puts |-> IF record.kind \in {"put", "bare_put"}
              THEN [t \in Transactions |->
                       IF t \in record.of THEN state.puts[t] + 1 ELSE state.puts[t]]
              ELSE state.puts,
     marks |-> CASE record.kind \in {"put", "mark"} -> state.marks \cup record.of
                 [] record.kind = "forget" -> state.marks \ record.of
                 [] OTHER -> state.marks]

RECURSIVE AfterAll(_, _)
AfterAll(state, records) ==
    IF records = <<>> THEN state ELSE AfterAll(After(state, Head(records)), Tail(records))

\* What the node knows: all that it has written, forced or not.
Now == AfterAll(disk, tail)
IsMarked(t) == t \in Now.marks

\* The puts become visible, and their mark is in the same record.
Put(t) ==
    /\ seen' = seen \cup {t}
    /\ UNCHANGED disk
    /\ tail' = tail \o
          CASE Bug = "mark_in_a_record_of_its_own" ->
                  <<Record("bare_put", {t}), Record("mark", {t})>>
            [] Bug = "delivered_without_mark" /\ "deliver" \in work[t] ->
                  <<Record("bare_put", {t})>>
            [] Bug = "taken_over_without_mark" /\ "takeover" \in work[t] ->
                  <<Record("bare_put", {t})>>
            [] OTHER -> <<Record("put", {t})>>

-----------------------------------------------------------------------------
(* The owner. *)

HoldIsAnswered(t) ==
    /\ owner[t] = "holding" /\ n1[t] = "held"
    /\ owner' = [owner EXCEPT ![t] = "ready"]
    /\ UNCHANGED <<told, database, branches, thread, logged, dropped, crashes, left>>

OwnerRollsBack(t) ==
    /\ owner[t] \in {"holding", "ready"}
    /\ owner' = [owner EXCEPT ![t] = "over"]
    /\ told' = [told EXCEPT ![t] = {"rolled_back"}]
    /\ UNCHANGED <<database, branches, thread, logged, dropped, crashes, left>>

OwnerCommits(t) ==
    /\ owner[t] = "ready"
    /\ owner' = [owner EXCEPT ![t] = "committing"]
    /\ request' = [request EXCEPT ![t] = "sent"]
    /\ UNCHANGED <<told, row, branches, thread, logged, dropped, crashes, left>>

CommitIsAnswered(t) ==
    /\ owner[t] = "committing" /\ request[t] \in {"committed", "refused"}
    /\ owner' = [owner EXCEPT ![t] = "over"]
    /\ told' = [told EXCEPT ![t] =
          {IF request[t] = "committed" THEN "committed" ELSE "rolled_back"}]
    /\ UNCHANGED <<database, branches, thread, logged, dropped, crashes, left>>

\* What was sent may be carried out all the same, now or later.
ConnectionIsLost(t) ==
    /\ owner[t] = "committing"
    /\ owner' = [owner EXCEPT ![t] = "asking"]
    /\ told' = [told EXCEPT ![t] =
          IF Bug = "lost_connection_taken_for_rollback" THEN {"rolled_back"} ELSE {}]
    /\ UNCHANGED <<database, branches, thread, logged, dropped, crashes, left>>

Hears(t, outcome) == told' = [told EXCEPT ![t] = @ \cup {outcome}]

\* Behind a fence it asks the node how the transaction ended there: in whichever branch. The row may
\* have been taken over and dropped before there was a fence. A node that knows nothing may have
\* forgotten it: then the owner says that it does not know, which is no answer that counts.
NodeIsAsked(t) ==
    /\ owner[t] = "fenced"
    /\ \/ /\ n1[t] = "committed" \/ (n2[t] = "committed" /\ Bug # "one_branch_asked_for")
          /\ Hears(t, "committed")
       \/ /\ n1[t] # "committed"
          /\ n2[t] # "committed" \/ Bug = "one_branch_asked_for"
          /\ n1[t] # "unknown" \/ Bug = "nothing_known_taken_for_rollback"
          /\ Hears(t, "rolled_back")
    /\ UNCHANGED <<owner, database, branches, thread, logged, dropped, crashes, left>>

-----------------------------------------------------------------------------
(* The database. Row and fence have the same key. *)

CommitReaches(t) ==
    /\ request[t] = "sent"
    /\ \/ /\ row[t] = "none"
          /\ row' = [row EXCEPT ![t] = "row"]
          /\ request' = [request EXCEPT ![t] = "committed"]
       \/ /\ request' = [request EXCEPT ![t] = "refused"]
          /\ UNCHANGED row
    /\ UNCHANGED <<client, branches, thread, logged, dropped, crashes, left>>

\* decideMarked, asked by the owner through the coordinator, or asked long ago.
FenceReaches(t) ==
    /\ owner[t] \in {"asking", "fenced"}
    /\ \/ /\ row[t] = "row" /\ t \notin left.looked
          /\ Hears(t, "committed")
          /\ UNCHANGED <<owner, row, left>>
       \/ /\ IF Bug = "fence_after_looking" THEN t \in left.looked ELSE row[t] # "row"
          /\ row' = [row EXCEPT ![t] = IF @ = "row" THEN @ ELSE "fence"]
          /\ owner' = [owner EXCEPT ![t] = "fenced"]
          /\ IF Bug = "node_not_asked_behind_a_fence"
             THEN Hears(t, "rolled_back")
             ELSE UNCHANGED told
          /\ UNCHANGED left
       \/ /\ Bug = "fence_after_looking" /\ row[t] # "row" /\ t \notin left.looked
          /\ left' = [left EXCEPT !.looked = @ \cup {t}]
          /\ UNCHANGED <<owner, told, row>>
    /\ UNCHANGED <<request, branches, thread, logged, dropped, crashes>>

WithoutRows(those) ==
    [t \in Transactions |-> IF t \in those /\ row[t] = "row" THEN "none" ELSE row[t]]

\* A request to drop that the node has given up, or asked for before a crash.
LateDropReaches(t) ==
    /\ t \in dropped /\ row[t] = "row"
    /\ row' = WithoutRows({t})
    /\ UNCHANGED <<client, request, branches, thread, logged, dropped, crashes, left>>

\* Only by bugs: a power cut of the database takes back what it has shown.
DatabaseLosesPower(t) ==
    /\ crashes < MaxCrashes
    /\ \/ /\ Bug = "rows_not_durably_gone"
          /\ t \in dropped /\ row[t] = "none"
          /\ row' = [row EXCEPT ![t] = "row"]
          /\ UNCHANGED request
       \/ /\ Bug = "row_shown_before_it_is_durable"
          /\ row[t] = "row" /\ told[t] = {}
          /\ row' = [row EXCEPT ![t] = "none"]
          /\ request' = [request EXCEPT ![t] = "refused"]
    /\ crashes' = crashes + 1
    /\ UNCHANGED <<client, branches, thread, logged, dropped, left>>

-----------------------------------------------------------------------------
(* The node, for the owner. *)

\* However late: a branch that has ended is not held anew, nor one of a transaction that was taken
\* over by the other branch. After a restart that knows neither it is.
HoldReaches(t) ==
    /\ n1[t] = "unknown" /\ t \notin forgot
    /\ n2[t] # "committed" \/ Bug = "late_hold_revives_branch"
    /\ n1' = [n1 EXCEPT ![t] = "held"]
    /\ UNCHANGED <<client, database, n2, work, forgot, thread, logged, dropped, crashes, left>>

\* The owner is silent, or it rolls back. That may come between any two steps of others.
NodeGivesUp(t) ==
    /\ n1[t] = "held"
    /\ n1' = [n1 EXCEPT ![t] = "rolled_back"]
    /\ UNCHANGED <<client, database, n2, work, forgot, thread, logged, dropped, crashes, left>>

IsFree(t) == work[t] = {} \/ Bug = "delivered_while_taken_over"

\* The owner says that the row is committed, and in which database, or said so long ago. Where
\* nothing is held, the node pulls from that database, which it does anyway.
DeliverReaches(t) ==
    /\ "committed" \in told[t]
    /\ n1[t] = "held" /\ ~ IsMarked(t) /\ IsFree(t) /\ "deliver" \notin work[t]
    /\ work' = [work EXCEPT ![t] = @ \cup {"deliver"}]
    /\ UNCHANGED <<client, database, n1, n2, forgot, thread, logged, dropped, crashes, left>>

\* Nothing is forced.
IsDelivered(t) ==
    /\ "deliver" \in work[t]
    /\ work' = [work EXCEPT ![t] = @ \ {"deliver"}]
    /\ IF n1[t] = "held"
       THEN n1' = [n1 EXCEPT ![t] = "committed"] /\ Put(t)
       ELSE UNCHANGED <<n1, logged>>
    /\ UNCHANGED <<client, database, n2, forgot, thread, dropped, crashes, left>>

\* The storage remembers only so many ends of branches, and forgets the oldest first. What is late
\* by more than that is not modelled, but for the owner, who may ask whenever it likes.
OutcomeIsForgotten(t) ==
    /\ work[t] = {}
    /\ forgot' = forgot \cup {t}
    /\ \/ /\ n1[t] \in {"committed", "rolled_back"}
          /\ n2[t] # "committed" \/ Bug # "rolled_back_after_takeover"
          /\ n1' = [n1 EXCEPT ![t] = "unknown"]
          /\ UNCHANGED n2
       \/ /\ n2[t] = "committed"
          /\ n1[t] # "rolled_back" \/ Bug = "rolled_back_after_takeover"
          /\ n2' = [n2 EXCEPT ![t] = "unknown"]
          /\ UNCHANGED n1
    /\ UNCHANGED <<client, database, work, thread, logged, dropped, crashes, left>>

-----------------------------------------------------------------------------
(* The node's thread: it drops, it pulls, it drops. *)

\* Marks that are old enough. First everything is forced.
DropBegins(those) ==
    /\ thread.phase = "drop" /\ Bug # "nobody_drops"
    /\ those # {} /\ those \subseteq Now.marks
    /\ thread' = Thread("dropping", those)
    /\ dropped' = dropped \cup those
    /\ IF \/ Bug = "rows_dropped_before_the_force"
          \/ Bug = "restart_drops_before_the_force" /\ left.read = Len(tail)
       THEN UNCHANGED <<disk, tail, left>>
       ELSE /\ disk' = Now
            /\ tail' = IF Bug = "marks_forgotten_before_rows_are_gone"
                       THEN <<Record("forget", those)>> ELSE <<>>
            /\ left' = [left EXCEPT !.read = 0]
    /\ UNCHANGED <<client, database, branches, crashes, seen>>

NothingToDrop ==
    /\ thread.phase = "drop"
    /\ Now.marks = {} \/ Bug = "nobody_drops"
    /\ thread' = Thread("pull", {})
    /\ UNCHANGED <<client, database, branches, logged, dropped, crashes, left>>

Forget(those) ==
    /\ row' = WithoutRows(those)
    /\ tail' = Append(tail, Record("forget", those))
    /\ UNCHANGED <<client, request, branches, disk, dropped, crashes, seen>>

\* The rows are gone for good. Then the marks are forgotten, which is not forced.
DropReturns ==
    /\ thread.phase = "dropping"
    /\ Forget(thread.those)
    /\ thread' = Thread("pull", {})
    /\ UNCHANGED left

DropIsGivenUp ==
    /\ crashes < MaxCrashes
    /\ thread.phase = "dropping"
    /\ crashes' = crashes + 1
    /\ thread' = Thread("pull", {})
    /\ UNCHANGED <<client, database, branches, logged, dropped, left>>

\* Only by a bug: a thread of its own drops while the other one pulls.
DropsInTheBackground ==
    /\ Bug = "pull_while_marks_are_forgotten"
    /\ \/ /\ thread.phase = "dropping" /\ left.dropping = {}
          /\ left' = [left EXCEPT !.dropping = thread.those]
          /\ thread' = Thread("pull", {})
          /\ UNCHANGED <<client, database, branches, logged, dropped, crashes>>
       \/ /\ left.dropping # {}
          /\ Forget(left.dropping)
          /\ left' = [left EXCEPT !.dropping = {}]
          /\ UNCHANGED thread

\* Only what is durable is shown: where a database shows more, the coordinator forces there first.
PullReads ==
    /\ thread.phase = "pull" /\ Bug # "nobody_pulls"
    /\ thread' = Thread("pulled", {t \in Transactions : row[t] = "row"})
    /\ UNCHANGED <<client, database, branches, logged, dropped, crashes, left>>

UsesLateAnswer ==
    /\ thread.phase = "pull" /\ left.answer # {}
    /\ thread' = Thread("pulled", left.answer)
    /\ left' = [left EXCEPT !.answer = {}]
    /\ UNCHANGED <<client, database, branches, logged, dropped, crashes>>

IsTakingOver == \E t \in Transactions : "takeover" \in work[t]

\* What has a mark was put. So was what the branch that held has committed, though the promises hold
\* without looking at that.
IsToBeTakenOver(t) == ~ IsMarked(t) /\ IsFree(t) /\ n1[t] # "committed"

PassesOver(t) ==
    /\ thread.phase = "pulled" /\ t \in thread.those /\ ~ IsTakingOver
    /\ ~ IsToBeTakenOver(t)
    /\ thread' = Thread("pulled", thread.those \ {t})
    /\ UNCHANGED <<client, database, branches, logged, dropped, crashes, left>>

RolledBack(branch) == IF branch \in {"unknown", "held"} THEN "rolled_back" ELSE branch
IsRolledBackFirst ==
    Bug \notin {"rolled_back_after_takeover", "held_beyond_takeover", "delivered_while_taken_over"}

\* The branch that holds, or held, or never heard of it, is rolled back first: so that nothing late
\* is held any more, and so that its end is forgotten before that of the other one.
TakeoverBegins(t) ==
    /\ thread.phase = "pulled" /\ t \in thread.those /\ ~ IsTakingOver
    /\ IsToBeTakenOver(t)
    /\ thread' = Thread("pulled", thread.those \ {t})
    /\ work' = [work EXCEPT ![t] = @ \cup {"takeover"}]
    /\ n1' = [n1 EXCEPT ![t] = IF IsRolledBackFirst THEN RolledBack(@) ELSE @]
    /\ UNCHANGED <<client, database, n2, forgot, logged, dropped, crashes, left>>

\* That this is not forced at once is more than the program allows itself.
IsTakenOver(t) ==
    /\ "takeover" \in work[t]
    /\ Put(t)
    /\ work' = [work EXCEPT ![t] = @ \ {"takeover"}]
    /\ n2' = [n2 EXCEPT ![t] = "committed"]
    /\ n1' = [n1 EXCEPT ![t] = IF IsRolledBackFirst \/ Bug = "held_beyond_takeover" THEN @
                               ELSE RolledBack(@)]
    /\ UNCHANGED <<client, database, forgot, thread, dropped, crashes, left>>

PullEnds ==
    /\ thread.phase = "pulled" /\ thread.those = {} /\ ~ IsTakingOver
    /\ thread' = Thread("drop", {})
    /\ UNCHANGED <<client, database, branches, logged, dropped, crashes, left>>

PullIsGivenUp ==
    /\ crashes < MaxCrashes
    /\ thread.phase = "pulled" /\ thread.those # {} /\ ~ IsTakingOver
    /\ crashes' = crashes + 1
    /\ thread' = Thread("drop", {})
    /\ left' = [left EXCEPT !.answer =
          IF Bug = "late_answer_of_a_pull_used" THEN thread.those ELSE {}]
    /\ UNCHANGED <<client, database, branches, logged, dropped>>

-----------------------------------------------------------------------------
(* Crashes of the node. *)

KnownAfter(branch, found) ==
    [t \in Transactions |->
        IF branch[t] = "committed" /\ found.puts[t] > 0 THEN "committed" ELSE "unknown"]

NodeRestarts(found) ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ n1' = KnownAfter(n1, found)
    /\ n2' = KnownAfter(n2, found)
    /\ work' = [t \in Transactions |-> {}]
    /\ thread' = Thread("drop", {})
    /\ left' = [dropping |-> {},
                answer |-> IF Bug = "answer_of_a_pull_survives_restart" /\ thread.phase = "pulled"
                           THEN thread.those ELSE {},
                looked |-> left.looked,
                read |-> IF Bug = "restart_drops_before_the_force" THEN Len(tail') ELSE 0]
    /\ UNCHANGED <<client, database, forgot, dropped, seen>>

NodeIsKilled ==
    /\ UNCHANGED <<disk, tail>>
    /\ NodeRestarts(Now)

NodeLosesPower ==
    \E kept \in 0..Len(tail) :
        /\ disk' = AfterAll(disk, SubSeq(tail, 1, kept))
        /\ tail' = <<>>
        /\ NodeRestarts(disk')

-----------------------------------------------------------------------------
(* The whole. *)

Threads ==
    \/ \E those \in SUBSET Transactions : DropBegins(those)
    \/ NothingToDrop \/ DropReturns \/ DropsInTheBackground
    \/ PullReads \/ PullEnds
    \/ \E t \in Transactions : PassesOver(t) \/ TakeoverBegins(t) \/ IsTakenOver(t)

Next ==
    \/ Threads \/ DropIsGivenUp \/ PullIsGivenUp \/ UsesLateAnswer
    \/ NodeIsKilled \/ NodeLosesPower
    \/ \E t \in Transactions :
          \/ HoldIsAnswered(t) \/ OwnerRollsBack(t) \/ OwnerCommits(t) \/ CommitIsAnswered(t)
          \/ ConnectionIsLost(t) \/ NodeIsAsked(t)
          \/ CommitReaches(t) \/ FenceReaches(t) \/ LateDropReaches(t) \/ DatabaseLosesPower(t)
          \/ HoldReaches(t) \/ NodeGivesUp(t) \/ DeliverReaches(t) \/ IsDelivered(t)
          \/ OutcomeIsForgotten(t)

\* What must go on happening for everything to settle: nothing that the owner does.
Spec ==
    /\ Init /\ [][Next]_vars
    /\ WF_vars(Threads)
    /\ WF_vars(\E t \in Transactions : IsDelivered(t))
    /\ WF_vars(\E t \in Transactions : NodeGivesUp(t))

-----------------------------------------------------------------------------
(* The promises. *)

IsCommitted(t) == request[t] = "committed"

\* What is not forced counts as well: whoever takes a message forces, and with it what put it.
RowMeansPutOnce == \A t \in Transactions : Now.puts[t] <= 1

\* A row that is committed is there until what it carries is on disk.
NothingIsLost ==
    \A t \in Transactions : IsCommitted(t) => row[t] = "row" \/ disk.puts[t] > 0

\* Not even for a moment, before a crash.
NothingWithoutARow == \A t \in seen : IsCommitted(t)

FencedNeverPut ==
    \A t \in Transactions : row[t] = "fence" /\ ~ IsCommitted(t) => t \notin seen

MarkOutlivesRow ==
    \A t \in Transactions : row[t] = "row" /\ Now.puts[t] > 0 => IsMarked(t)

ToldCommittedIsTrue ==
    \A t \in Transactions : "committed" \in told[t] => IsCommitted(t)

ToldRolledBackIsTrue ==
    \A t \in Transactions : "rolled_back" \in told[t] => ~ IsCommitted(t) /\ t \notin seen

OwnerHearsOneOutcome == \A t \in Transactions : Cardinality(told[t]) <= 1

TypeOK ==
    /\ owner \in [Transactions -> Owners]
    /\ told \in [Transactions -> SUBSET {"committed", "rolled_back"}]
    /\ request \in [Transactions -> Requests]
    /\ row \in [Transactions -> Rows]
    /\ n1 \in [Transactions -> Branches]
    /\ n2 \in [Transactions -> {"unknown", "committed"}]
    /\ work \in [Transactions -> SUBSET {"deliver", "takeover"}]
    /\ forgot \subseteq Transactions
    /\ thread \in [phase : Phases, those : SUBSET Transactions]
    /\ disk.puts \in [Transactions -> Nat] /\ disk.marks \subseteq Transactions
    /\ tail \in Seq([kind : {"put", "bare_put", "mark", "forget"}, of : SUBSET Transactions])
    /\ dropped \subseteq Transactions
    /\ crashes \in 0..MaxCrashes
    /\ seen \subseteq Transactions
    /\ left \in Left

\* Everything settles: what is committed is put, and neither row nor mark is left of it.
Settled ==
    /\ Now.marks = {}
    /\ \A t \in Transactions :
          /\ row[t] # "row" /\ n1[t] # "held" /\ work[t] = {}
          /\ IsCommitted(t) <=> Now.puts[t] = 1

EverythingSettles == <>[] Settled

-----------------------------------------------------------------------------
(* The opposite of promises: TLC must be able to break each of these. *)

NothingIsTakenOver ==
    ~ (Settled /\ \E t \in Transactions : n2[t] = "committed" /\ told[t] = {} /\ t \in forgot)

NothingIsPutAgainAfterACrash ==
    ~ (\E t \in seen : Now.puts[t] = 0)

NothingIsFoundBehindAFence ==
    ~ (\E t \in Transactions : owner[t] = "fenced" /\ told[t] = {"committed"})

NothingIsFenced ==
    ~ (\E t \in Transactions :
          row[t] = "fence" /\ told[t] = {"rolled_back"} /\ request[t] = "refused")
=============================================================================
