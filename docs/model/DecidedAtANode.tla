--------------------------- MODULE DecidedAtANode ---------------------------
(***************************************************************************)
(* A node decides: all branches of a transaction but one are prepared, and *)
(* the last one commits in one phase at its node. That commit is the       *)
(* decision, and a mark in the same forced write says so to the others,    *)
(* the voters. Where nothing was decided, a fence sees to it that nothing  *)
(* ever is. TLC checks the promises at the end of this file in every order *)
(* of steps and crashes. README.md beside it says what is left out, how    *)
(* big the checked models are, and which planted bugs are found.           *)
(*                                                                         *)
(* How the world is drawn, where it differs from TwoPhaseCommit:           *)
(*                                                                         *)
(* - The coordinator has no variable: it keeps nothing of such a           *)
(*   transaction. It carries questions to the node and answers back, and   *)
(*   any of them may be late by any time or be lost, as in its crashes.    *)
(*   When its patience ends is left open, so that it may end at once.      *)
(* - The owner may stop at any step, for ever. What it is answered it      *)
(*   hears at once; an answer that is lost is a step not taken.            *)
(* - What the owner asks of the node may be repeated while it waits for an *)
(*   answer. It may arrive late too, but not through a crash of the node   *)
(*   after the owner has its answer: the connection died with the node.    *)
(* - What the node has written but not forced may survive a crash or not;  *)
(*   a restart forces what it has found before it says anything.           *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Voters,         \* The branches that are prepared: all but the one that decides.
    MaxCrashes,     \* How many there may be, of node and voters together; failed fences count.
    Bug             \* The planted bug, or "none".

\* Each breaks one rule of the protocol, and TLC must find what comes of it.
Bugs == {
    "rolled_back_told_without_fence",
    "fence_told_before_force",
    "fence_forgotten_by_restart",
    "fence_during_decision",
    "decided_during_fence",
    "committed_branch_fenced",
    "decided_before_all_votes",
    "decision_told_before_force",
    "mark_in_a_write_of_its_own",
    "restart_trusts_unforced_mark",
    "unclear_commit_taken_for_none",
    "unclear_fence_taken_for_none",
    "mark_forgotten_before_end_is_durable",
    "silence_taken_for_rollback",
    "late_decide_revives_branch",
    "voters_do_not_ask",
    "patience_never_ends"
}

Interchangeable == Permutations(Voters)

ASSUME MaxCrashes \in Nat /\ Bug \in Bugs \cup {"none"}

VARIABLES
    \* The node that decides.
    node,           \* What it is about: see Nodes.
    known,          \* What it tells who asks, from memory: a mark, a fence or nothing.
    own,            \* Its branch, the last one of the transaction: see OwnBranches.
    store,          \* Its disk: the branch's commit, the mark, the fence.
    \* The voters.
    branch,         \* In memory: see Branches.
    disk,           \* What a restart finds.
    \* The rest of the world.
    owner,          \* How far the owner is: see Owners.
    net,            \* Every message ever sent from, to and about voters.
    told,           \* Every answer that was given to the owner.
    crashes,        \* How many there were.
    ended           \* History, seen by nobody: the ends that the work of each voter has met.

vars == <<node, known, own, store, branch, disk, owner, net, told, crashes, ended>>
decider == <<node, known, own, store>>
voters == <<branch, disk, ended>>

Nodes == {
    "idle",
    "deciding",     \* Commit and mark are written; the force has not returned.
    "fencing",      \* The fence is written; the force has not returned.
    "marking"       \* Only by a bug: the commit is forced, the mark is being forced after it.
}
OwnBranches == {"working", "rolled_back", "lost", "committed",
                "committed_long_ago"}  \* The storage remembers only so many outcomes.
Written == {"no", "written", "forced"}
Branches == {"working", "prepared", "committed", "rolled_back", "lost"}
Disks == {"nothing", "prepared", "committed", "rolled_back"}
Owners == {
    "voting",       \* Prepare went out, votes come in.
    "deciding",     \* Decide went out. From here on it does only what it is told.
    "given_up",     \* A vote did not come: it never asks for a decision.
    "gone"          \* It died, or it has done its part.
}

Message(kind, v) == [kind |-> kind, of |-> v]
Kinds == {"vote", "commit", "rollback", "question", "ended"}
Send(kind, v) == net' = net \cup {Message(kind, v)}
Sent(kind, v) == Message(kind, v) \in net

Init ==
    /\ node = "idle"
    /\ known = "none"
    /\ own = "working"
    /\ store = [commit |-> "no", mark |-> "no", fence |-> "no"]
    /\ branch = [v \in Voters |-> "working"]
    /\ disk = [v \in Voters |-> "nothing"]
    /\ owner = "voting"
    /\ net = {}
    /\ told = {}
    /\ crashes = 0
    /\ ended = [v \in Voters |-> {}]

-----------------------------------------------------------------------------
(* The voter. *)

PrepareReaches(v) ==
    /\ branch[v] = "working"
    /\ branch' = [branch EXCEPT ![v] = "prepared"]
    /\ disk' = [disk EXCEPT ![v] = "prepared"]
    /\ Send("vote", v)
    /\ UNCHANGED <<decider, owner, told, crashes, ended>>

RollBackVoter(v) ==
    /\ branch' = [branch EXCEPT ![v] = "rolled_back"]
    /\ ended' = [ended EXCEPT ![v] = @ \cup {"rolled_back"}]

VoterRollsBackAlone(v) ==
    /\ branch[v] = "working"
    /\ RollBackVoter(v)
    /\ UNCHANGED <<decider, disk, owner, net, told, crashes>>

Asks(v) ==
    /\ branch[v] = "prepared" /\ Bug # "voters_do_not_ask"
    /\ Send("question", v)
    /\ UNCHANGED <<decider, voters, owner, told, crashes>>

\* From the owner (endVoter) or from the coordinator, who was asked. Neither end is forced at once.
CommitReaches(v) ==
    /\ Sent("commit", v)
    /\ branch[v] = "prepared"
    /\ branch' = [branch EXCEPT ![v] = "committed"]
    /\ ended' = [ended EXCEPT ![v] = @ \cup {"committed"}]
    /\ UNCHANGED <<decider, disk, owner, net, told, crashes>>

RollbackReaches(v) ==
    /\ Sent("rollback", v)
    /\ branch[v] \in {"working", "prepared"}
    /\ RollBackVoter(v)
    /\ UNCHANGED <<decider, disk, owner, net, told, crashes>>

\* Some later force takes the lazy record of the end with it.
EndBecomesDurable(v) ==
    /\ branch[v] \in {"committed", "rolled_back"} /\ disk[v] = "prepared"
    /\ disk' = [disk EXCEPT ![v] = branch[v]]
    /\ UNCHANGED <<decider, branch, owner, net, told, crashes, ended>>

\* getEnded, asked by the coordinator for the node that keeps the mark. It forces first.
SaysItHasEnded(v) ==
    /\ known = "mark"
    /\ branch[v] \notin {"working", "prepared"}
    /\ disk' = [disk EXCEPT ![v] =
          IF @ = "prepared" /\ Bug # "mark_forgotten_before_end_is_durable" THEN branch[v] ELSE @]
    /\ Send("ended", v)
    /\ UNCHANGED <<decider, branch, owner, told, crashes, ended>>

VoterCrashes(v) ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ \/ /\ disk[v] = "nothing" /\ branch[v] = "working"
          /\ branch' = [branch EXCEPT ![v] = "lost"]
          /\ ended' = [ended EXCEPT ![v] = @ \cup {"rolled_back"}]
       \/ /\ disk[v] = "prepared" /\ branch[v] # "prepared"
          /\ branch' = [branch EXCEPT ![v] = "prepared"]
          /\ UNCHANGED ended
    /\ UNCHANGED <<decider, disk, owner, net, told>>

-----------------------------------------------------------------------------
(* The owner. *)

AllVotesReach ==
    /\ owner = "voting"
    /\ \A v \in Voters : Sent("vote", v) \/ Bug = "decided_before_all_votes"
    /\ owner' = "deciding"
    /\ UNCHANGED <<decider, voters, net, told, crashes>>

\* A vote that does not come, or the application's rollback.
OwnerGivesUp ==
    /\ \/ owner = "voting" /\ owner' = "given_up"
       \/ owner = "deciding" /\ Bug = "silence_taken_for_rollback" /\ UNCHANGED owner
    /\ told' = told \cup {"rolled_back"}
    /\ UNCHANGED <<decider, voters, net, crashes>>

OwnerLeaves ==
    /\ owner # "gone"
    /\ owner' = "gone"
    /\ UNCHANGED <<decider, voters, net, told, crashes>>

OwnerTells(v) ==
    /\ owner \in {"deciding", "given_up"}
    /\ \/ "committed" \in told /\ Send("commit", v)
       \/ "rolled_back" \in told /\ Send("rollback", v)
    /\ UNCHANGED <<decider, voters, owner, told, crashes>>

Tell(outcome) ==
    /\ told' = told \cup {outcome}
    /\ UNCHANGED <<voters, owner, net, crashes>>

-----------------------------------------------------------------------------
(* The node. *)

NodeRollsBackAlone ==
    /\ own = "working" /\ node # "deciding"
    /\ own' = "rolled_back"
    /\ UNCHANGED <<node, known, store, voters, owner, net, told, crashes>>

\* A decide that is under way: its owner waits for the answer, or died before it came.
IsDecideUnderWay ==
    \/ owner = "deciding" /\ told = {}
    \/ owner = "gone" /\ told = {} /\ \A v \in Voters : Sent("vote", v)
    \/ owner = "deciding" /\ Bug \in {"silence_taken_for_rollback", "late_decide_revives_branch"}

IsFree(other) == node = "idle" \/ node = other

\* Commit and mark are one write.
DecideReaches ==
    /\ IsDecideUnderWay
    /\ own = "working" /\ known = "none"
    /\ IsFree(IF Bug = "decided_during_fence" THEN "fencing" ELSE "idle")
    /\ node' = "deciding"
    /\ store' = [store EXCEPT !.commit = "written",
          !.mark = IF Bug = "mark_in_a_write_of_its_own" THEN @ ELSE "written"]
    /\ IF Bug = "decision_told_before_force"
       THEN known' = "mark" /\ own' = "committed"
       ELSE UNCHANGED <<known, own>>
    /\ UNCHANGED <<voters, owner, net, told, crashes>>

\* The commit point.
DecisionIsForced ==
    /\ node = "deciding"
    /\ own' = "committed"
    /\ IF Bug = "mark_in_a_write_of_its_own"
       THEN /\ node' = "marking"
            /\ store' = [store EXCEPT !.commit = "forced", !.mark = "written"]
            /\ UNCHANGED known
       ELSE /\ node' = "idle"
            /\ store' = [store EXCEPT !.commit = "forced", !.mark = "forced"]
            /\ known' = "mark"
    /\ UNCHANGED <<voters, owner, net, told, crashes>>

MarkIsForced ==
    /\ node = "marking"
    /\ node' = "idle"
    /\ store' = [store EXCEPT !.mark = "forced"]
    /\ known' = "mark"
    /\ UNCHANGED <<own, voters, owner, net, told, crashes>>

\* The storage has refused the commit. Where it only does not know (a database whose connection
\* broke) it is still being decided, until that is found out.
DecisionFails ==
    /\ node = "deciding"
    /\ node' = "idle"
    /\ own' = "rolled_back"
    /\ \/ store' = [store EXCEPT !.commit = "no", !.mark = "no"]
       \/ /\ Bug = "unclear_commit_taken_for_none"
          /\ store' = [store EXCEPT !.commit = "forced", !.mark = "forced"]
    /\ UNCHANGED <<known, voters, owner, net, told, crashes>>

\* The answer to decide, as often as it is repeated. The branch is remembered beyond its mark.
DecideIsAnswered ==
    /\ owner = "deciding"
    /\ \/ own = "committed" /\ Tell("committed") /\ UNCHANGED own
       \/ /\ own \in {"rolled_back", "lost"} \/ (own = "working" /\ known = "fence")
             \/ (own = "working" /\ node = "fencing")
          /\ own' = "rolled_back"
          /\ Tell("rolled_back")
    /\ UNCHANGED <<node, known, store>>

\* What whoever asks is told by the mark or, where it is forgotten, by the branch itself.
IsFoundCommitted ==
    \/ known = "mark"
    \/ known = "none" /\ own = "committed" /\ Bug # "committed_branch_fenced"

\* A voter's question, carried by the coordinator. A question of long ago may arrive as well.
QuestionReaches(v) ==
    /\ Sent("question", v)
    /\ \/ IsFoundCommitted /\ Send("commit", v)
       \/ known = "fence" /\ Send("rollback", v)
       \/ /\ known = "none" /\ own # "committed" /\ Bug = "rolled_back_told_without_fence"
          /\ Send("rollback", v)
    /\ UNCHANGED <<decider, voters, owner, told, crashes>>

\* The owner has no answer to its decide, and asks the coordinator (decideMarked).
OwnerFindsOut ==
    /\ owner = "deciding"
    /\ \/ IsFoundCommitted /\ Tell("committed")
       \/ known = "fence" /\ Tell("rolled_back")
    /\ UNCHANGED decider

\* Somebody asks, nothing is decided, and the coordinator is not patient any more. Where the branch
\* has committed no fence is put up, also when its mark is forgotten: its owner may not know yet.
FenceReaches ==
    /\ owner = "deciding" \/ \E v \in Voters : Sent("question", v)
    /\ known = "none"
    /\ own # "committed" \/ Bug = "committed_branch_fenced"
    /\ IsFree(IF Bug = "fence_during_decision" THEN "deciding" ELSE "idle")
    /\ store.fence = "no" \/ Bug \in {"unclear_fence_taken_for_none", "fence_forgotten_by_restart"}
    /\ node' = "fencing"
    /\ store' = [store EXCEPT !.fence = "written"]
    /\ known' = IF Bug = "fence_told_before_force" THEN "fence" ELSE known
    /\ UNCHANGED <<own, voters, owner, net, told, crashes>>

FenceIsForced ==
    /\ node = "fencing"
    /\ node' = "idle"
    /\ store' = [store EXCEPT !.fence = "forced"]
    /\ known' = "fence"
    /\ UNCHANGED <<own, voters, owner, net, told, crashes>>

\* As with decisions: only where it is certain that the fence is not there. A fault like a crash.
FenceFails ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ node = "fencing"
    /\ node' = "idle"
    /\ store' = [store EXCEPT !.fence =
          IF Bug = "unclear_fence_taken_for_none" THEN "forced" ELSE "no"]
    /\ known' = "none"
    /\ UNCHANGED <<own, voters, owner, net, told>>

\* A removal that a crash takes back is no harm, so it may as well be forced at once.
MarkIsForgotten ==
    /\ node = "idle" /\ known = "mark"
    /\ \A v \in Voters : Sent("ended", v)
    /\ known' = "none"
    /\ store' = [store EXCEPT !.mark = "no"]
    /\ UNCHANGED <<node, own, voters, owner, net, told, crashes>>

\* The storage forgets the outcomes of branches long past: never those that an owner still asks for.
OutcomeIsForgotten ==
    /\ own = "committed" /\ known = "none" /\ node = "idle" /\ owner = "gone"
    /\ own' = "committed_long_ago"
    /\ UNCHANGED <<node, known, store, voters, owner, net, told, crashes>>

\* What was written and not forced is there, or it is not.
Kept(record) ==
    IF record = "written" /\ Bug # "restart_trusts_unforced_mark" THEN "forced" ELSE record
Lost(record) == IF record = "written" THEN "no" ELSE record
StoresAfterACrash ==
    {[commit |-> Kept(store.commit), mark |-> Kept(store.mark), fence |-> Kept(store.fence)],
     [commit |-> Lost(store.commit), mark |-> Lost(store.mark), fence |-> Lost(store.fence)]}

\* A branch that was not committed is gone, and what it was told with it. Where decide brings all of
\* its work, a repeated one makes it anew; where work came before, it is refused.
NodeCrashes ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ node' = "idle"
    /\ \E found \in StoresAfterACrash :
          /\ store' = found
          /\ known' = CASE found.mark # "no" -> "mark"
                        [] found.fence # "no" /\ Bug # "fence_forgotten_by_restart" -> "fence"
                        [] OTHER -> "none"
          /\ IF found.commit # "no"
             THEN own' = IF own = "committed_long_ago" THEN own ELSE "committed"
             ELSE own' \in {"working", "lost"}
    /\ UNCHANGED <<voters, owner, net, told>>

-----------------------------------------------------------------------------
(* The whole. *)

Next ==
    \/ AllVotesReach \/ OwnerGivesUp \/ OwnerLeaves \/ OwnerFindsOut
    \/ NodeRollsBackAlone \/ DecideReaches \/ DecisionIsForced \/ MarkIsForced \/ DecisionFails
    \/ DecideIsAnswered \/ FenceReaches \/ FenceIsForced \/ FenceFails \/ MarkIsForgotten
    \/ OutcomeIsForgotten \/ NodeCrashes
    \/ \E v \in Voters :
          \/ PrepareReaches(v) \/ VoterRollsBackAlone(v) \/ Asks(v) \/ CommitReaches(v)
          \/ RollbackReaches(v) \/ EndBecomesDurable(v) \/ SaysItHasEnded(v) \/ VoterCrashes(v)
          \/ OwnerTells(v) \/ QuestionReaches(v)

\* What must go on happening for everything to settle. The owner is not among it, and a message is
\* sure to arrive only while its sender is still repeating it: a voter in doubt asks and asks.
Diligence ==
    \/ DecisionIsForced \/ MarkIsForced \/ FenceIsForced \/ MarkIsForgotten
    \/ \E v \in Voters :
          \/ VoterRollsBackAlone(v) \/ Asks(v) \/ EndBecomesDurable(v) \/ SaysItHasEnded(v)
          \/ branch[v] = "prepared" /\ QuestionReaches(v)
          \/ branch[v] = "prepared" /\ Bug # "patience_never_ends" /\ FenceReaches
          \/ (known = "mark" \/ own = "committed") /\ CommitReaches(v)
          \/ known = "fence" /\ RollbackReaches(v)

Spec == Init /\ [][Next]_vars /\ WF_vars(Diligence)

-----------------------------------------------------------------------------
(* The promises. *)

Gone(v) == branch[v] \in {"rolled_back", "lost"}
IsCommitted == own \in {"committed", "committed_long_ago"}

AllEndTheSameWay ==
    /\ \A v, w \in Voters : ~ (branch[v] = "committed" /\ Gone(w))
    /\ \A v \in Voters : ~ (IsCommitted /\ Gone(v))

VotersCommitOnlyWhatIsDecided ==
    \A v \in Voters : branch[v] = "committed" => IsCommitted /\ store.commit = "forced"

NoVoterEndsBothWays ==
    \A v \in Voters : ended[v] # {"committed", "rolled_back"}

\* A voter that has ended may hear anything once the mark is forgotten. One in doubt may not.
WhoIsInDoubtIsToldTheTruth ==
    \A v \in Voters : branch[v] = "prepared" =>
        /\ Sent("commit", v) => IsCommitted
        /\ Sent("rollback", v) => ~ IsCommitted

ToldCommittedIsTrue ==
    "committed" \in told =>
        IsCommitted /\ store.commit = "forced" /\ \A v \in Voters : ~ Gone(v)

ToldRolledBackIsTrue ==
    "rolled_back" \in told =>
        ~ IsCommitted /\ store.commit # "forced" /\ \A v \in Voters : branch[v] # "committed"

OwnerHearsOneOutcome == Cardinality(told) <= 1

\* Also for a voter that only a crash would put in doubt again.
MarkOutlivesDoubt ==
    IsCommitted => store.mark = "forced" \/ \A v \in Voters : disk[v] # "prepared"

NeverMarkAndFence == store.mark = "no" \/ store.fence = "no"

TypeOK ==
    /\ node \in Nodes
    /\ known \in {"none", "mark", "fence"}
    /\ own \in OwnBranches
    /\ store \in [commit : Written, mark : Written, fence : Written]
    /\ branch \in [Voters -> Branches]
    /\ disk \in [Voters -> Disks]
    /\ owner \in Owners
    /\ net \subseteq [kind : Kinds, of : Voters]
    /\ told \subseteq {"committed", "rolled_back"}
    /\ crashes \in 0..MaxCrashes
    /\ ended \in [Voters -> SUBSET {"committed", "rolled_back"}]

\* Everything settles: no voter is in doubt, every end is durable, and the mark is forgotten.
Settled ==
    /\ node = "idle" /\ store.mark = "no"
    /\ \A v \in Voters :
          \/ branch[v] = "committed" /\ disk[v] = "committed"
          \/ Gone(v) /\ disk[v] \in {"nothing", "rolled_back"}

EverythingSettles == <>[] Settled

-----------------------------------------------------------------------------
(* The opposite of promises: TLC must be able to break each of these. *)

NothingIsCommittedByAsking ==
    ~ (Settled /\ owner = "gone" /\ told = {} /\ \A v \in Voters : branch[v] = "committed")

NothingIsFoundAfterItsMark ==
    ~ (Settled /\ own = "committed" /\ crashes > 0 /\ told = {"committed"}
       /\ \A v \in Voters : Sent("question", v))

NothingIsRolledBackByAFence ==
    ~ (Settled /\ store.fence = "forced" /\ told = {} /\ \A v \in Voters : disk[v] = "rolled_back")
=============================================================================
